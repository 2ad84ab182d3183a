//! The bytes of a blob that is being copied, for a client: as they arrive, and then from the
//! storage. Clients give up after a minute without a byte. So a client that has waited for the
//! transfer for a while gets the bytes from the other registry, once more.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use content::{Descriptor, Error};
use futures_util::{StreamExt, TryStreamExt, stream};
use registry::client::Remote;
use registry::server::{BlobStream, Storage, windows};
use tokio::time::{Instant, timeout_at};

use super::transfers::Transfer;
use crate::repository_target::RepositoryTarget;

/// How long a client waits for a transfer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client of a transfer.
pub(super) struct Follower<S> {
    pub(super) transfer: Transfer,
    pub(super) target: RepositoryTarget<S>,
    pub(super) remote: Remote,
    pub(super) blob: Descriptor,
    /// The bytes that are missing.
    pub(super) range: Range<u64>,
}

impl<S: Storage> Follower<S> {
    /// Streams the bytes. The first ones are awaited before this returns, so that the response can
    /// have the status of an error.
    pub(super) async fn stream(self) -> Result<BlobStream, Error> {
        let begun = self.transfer.running.begun;
        let mut steps = Steps { follower: self, since: begun, rest: None };
        let first = steps.next().await?;
        let others =
            stream::try_unfold(steps, |mut steps| async move { Ok(steps.next().await?.map(|piece| (piece, steps))) });
        Ok(stream::iter(first.map(Ok)).chain(others).boxed())
    }

    /// The bytes that are missing, from the storage, or from the other registry after `until`.
    async fn rest(&mut self, until: Instant) -> Result<BlobStream, Error> {
        let ended = timeout_at(until, self.transfer.running.finished()).await;
        self.transfer.ensure_one_source()?;
        let Ok(copied) = ended else {
            return windows(&self.remote, &self.blob, self.range.clone(), ()).await;
        };
        copied?;
        let RepositoryTarget { storage, repository } = &self.target;
        storage.stream(repository, &self.blob, self.range.clone()).await
    }
}

struct Steps<S> {
    follower: Follower<S>,
    /// Since when the client waits.
    since: Instant,
    /// The bytes after those of the running transfer.
    rest: Option<BlobStream>,
}

impl<S: Storage> Steps<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(live) = &mut self.follower.transfer.live {
            if let Ok(Some(piece)) = timeout_at(self.since + PATIENCE, live.recv()).await {
                self.follower.range.start += piece.len() as u64;
                self.since = Instant::now();
                return Ok(Some(piece));
            }
            self.follower.transfer.live = None;
        }
        if self.rest.is_none() {
            self.rest = Some(self.follower.rest(self.since + PATIENCE).await?);
        }
        match &mut self.rest {
            Some(rest) => rest.try_next().await,
            None => Ok(None),
        }
    }
}
