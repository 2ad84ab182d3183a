//! Copies of tags of other registries, at the intervals that the rules name.

use content::operation::Result;
use futures_util::future::join_all;
use registry::server::Storage;
use transfer::{Hosts, SyncExecution, SyncSource, SyncTarget, SyncedTag, TagOutcome, sync};

/// Copies the tags of all sources, each at its interval. It ends only if there are no sources.
pub(crate) async fn keep_synced<S: Storage>(hosts: &Hosts, to: &SyncTarget<'_, S>, sources: &[SyncSource]) {
    join_all(sources.iter().map(|source| keep_source(hosts, to, source))).await;
}

async fn keep_source<S: Storage>(hosts: &Hosts, to: &SyncTarget<'_, S>, source: &SyncSource) {
    loop {
        let done = sync(hosts, to, source, SyncExecution::Copy, |synced| log(&synced)).await;
        if let Err(error) = done {
            tracing::warn!(registry = source.registry, "its tags were not copied: {error:#}");
        }
        tokio::time::sleep(source.every).await;
    }
}

fn log(synced: &SyncedTag) {
    let SyncedTag { repository, tag, outcome } = synced;
    match outcome {
        Ok(TagOutcome::Copied) => tracing::info!(repository, tag, "copied from another registry"),
        Ok(TagOutcome::Unchanged | TagOutcome::Differs) => {}
        Err(error) => tracing::warn!(repository, tag, "not copied from another registry: {error:#}"),
    }
}

/// Copies or reports the tags of all sources once.
///
/// # Errors
/// The repositories of a source cannot be listed.
pub(crate) async fn sync_once<S: Storage>(
    hosts: &Hosts,
    to: &SyncTarget<'_, S>,
    sources: &[SyncSource],
    execution: SyncExecution,
    mut each: impl FnMut(SyncedTag),
) -> Result<()> {
    for source in sources {
        sync(hosts, to, source, execution, &mut each).await?;
    }
    Ok(())
}
