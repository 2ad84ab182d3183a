//! Copies back for callers that block on the disk.

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use content::operation::{OperationError, RemoteClass};
use content::{Descriptor, Digest, Error, Unwatched};
use library::Library;
use store::Recall;
use tokio::runtime::{Builder, Runtime};

use crate::blocking::blocking;
use crate::tier::{Inner, Tier};

/// Maximum number of callers that wait. Each waits on a thread for blocking work, of which the
/// daemon has 512.
const MOST: usize = 128;
/// Free bytes beyond the size of the blob below which other blobs leave the disk first.
const MARGIN: u64 = 1 << 30;

/// Copies blobs back on a runtime of its own: the threads of the daemon's runtime may all be
/// waiting for blobs.
#[derive(Debug)]
pub(crate) struct Recaller {
    /// The library of the tier keeps the store open, and the store has this value.
    tier: Weak<Inner>,
    /// `None` only while this value is dropped.
    runtime: Option<Runtime>,
    waiting: AtomicUsize,
}

impl Recaller {
    pub(crate) fn new(tier: &Tier) -> Result<Self, OperationError> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("tier").enable_all().build()?;
        Ok(Self { tier: Arc::downgrade(&tier.0), runtime: Some(runtime), waiting: AtomicUsize::new(0) })
    }

    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Tier) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let stopping = || Error::Other("the daemon is stopping".into());
        let tier = Tier(self.tier.upgrade().ok_or_else(stopping)?);
        let runtime = self.runtime.as_ref().ok_or_else(stopping)?;
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let reason = format!("{MOST} requests wait for blobs of the tier; try again later");
            return Err(Error::Remote { class: RemoteClass::Unreachable, source: reason.into() });
        }
        let (sender, done) = std::sync::mpsc::channel();
        let work = work(tier);
        drop(runtime.spawn(async move { drop(sender.send(work.await)) }));
        let result = done.recv().map_err(|_| Error::Other("reading the tier was interrupted".into()));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result?
    }
}

impl Drop for Recaller {
    fn drop(&mut self) {
        // Dropping it would wait for its threads, perhaps on a thread that must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Recall for Recaller {
    fn recall(&self, blob: &Descriptor) -> Result<(), Error> {
        let blob = blob.clone();
        self.run(|tier| async move {
            let free = blocking(&tier.0.library, Library::free_space).await?;
            let _reserved = tier.0.recalls.reserve(blob.size);
            if free < blob.size.saturating_add(MARGIN)
                && let Err(error) = tier.make_room(HashSet::from([blob.digest]), &Unwatched).await
            {
                tracing::warn!("no room could be made for a blob of the tier: {error:#}");
            }
            tier.recall(&blob).await?;
            tier.tell_due();
            Ok(())
        })
    }

    fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let digest = *digest;
        self.run(|tier| async move { tier.size_there(&digest).await })
    }
}
