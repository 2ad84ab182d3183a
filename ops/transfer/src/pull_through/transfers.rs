//! Transfers of blobs from other registries in progress: one for each blob, a few in all.
//!
//! A transfer goes on when its client has left. A client that asks for all bytes of a blob gets
//! them while they arrive; all others wait for the end of the transfer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use content::operation::{Classified, ErrorClass};
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};
use registry::RepositoryName;
use registry::client::Fetcher;
use registry::server::Storage;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::repository_target::{RepositoryIngest, RepositoryTarget};
use crate::upstream::Uncounted;

/// Number of blobs that are transferred at a time. Each needs up to 32 MiB of memory.
const AT_ONCE: usize = 8;
/// Number of pieces that wait for the client of a transfer.
const PIECES: usize = 8;
/// How long a transfer waits for its client. Others may wait for the transfer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Transfers in progress. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Transfers {
    running: Arc<Mutex<Running>>,
    turns: Arc<Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>>,
    permits: Arc<Semaphore>,
}

type Running = HashMap<(RepositoryName, Digest), watch::Receiver<End>>;

/// The result of a transfer; `None` while it runs.
type End = Option<Result<(), Failure>>;

/// Why a transfer failed, for all clients that wait for it.
#[derive(Clone, Debug)]
struct Failure {
    class: ErrorClass,
    text: String,
}

/// A transfer from the view of a client.
pub(super) struct Transfer {
    end: watch::Receiver<End>,
    /// The bytes from the beginning of the blob. They end when the client is too slow, and before
    /// the last piece, which the client may see only after the blob was verified.
    pub(super) fed: Option<mpsc::Receiver<Bytes>>,
    /// Whether the bytes may be wrong, because they came from several sources.
    is_mixed: Arc<AtomicBool>,
}

impl Default for Transfers {
    fn default() -> Self {
        Self { running: Arc::default(), turns: Arc::default(), permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Transfers {
    /// The lock of a manifest.
    pub(super) fn turn(&self, manifest: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&manifest).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(manifest, Arc::downgrade(&turn));
        turn
    }

    /// Joins the transfer of a blob, or begins it.
    pub(super) fn join<S: Storage>(
        &self,
        target: RepositoryTarget<S>,
        fetcher: Fetcher,
        blob: &Descriptor,
        wants_all: bool,
    ) -> Transfer {
        let key = (target.repository.name.clone(), blob.digest);
        let is_mixed = Arc::default();
        let mut running = self.lock();
        if let Some(end) = running.get(&key) {
            return Transfer { end: end.clone(), fed: None, is_mixed };
        }
        let (finish, end) = watch::channel(None);
        running.insert(key.clone(), end.clone());
        let (pieces, fed) = mpsc::channel(PIECES);
        let feed = Feed { pieces, position: 0, size: blob.size, is_mixed: Arc::clone(&is_mixed) };
        let running_now = RunningTransfer { transfers: self.clone(), key };
        let blob = blob.clone();
        tokio::spawn(async move {
            let feed = wants_all.then_some(feed);
            let result = running_now.transfers.copy(target, &fetcher, &blob, feed).await;
            if let Err(Failure { text, .. }) = &result {
                tracing::warn!(digest = %blob.digest, "a blob was not copied: {text}");
            }
            drop(running_now);
            finish.send_replace(Some(result));
        });
        Transfer { end, fed: wants_all.then_some(fed), is_mixed }
    }

    async fn copy<S: Storage>(
        &self,
        target: RepositoryTarget<S>,
        fetcher: &Fetcher,
        blob: &Descriptor,
        feed: Option<Feed>,
    ) -> Result<(), Failure> {
        let _permit = self.permits.acquire().await.expect("invariant: the semaphore is never closed");
        // Another repository may have it.
        if target.storage.mount(None, &target.repository, &blob.digest).await.map_err(|e| Failure::of(&e))? {
            return Ok(());
        }
        // Another replica that copies the same blob must not share the ingest.
        let id = format!("copy-{:032x}", rand::random::<u128>());
        let id = IngestId::parse(&id).map_err(|e| Failure::of(&e))?;
        let target = FedTarget { target, id, feed: Arc::new(tokio::sync::Mutex::new(feed)) };
        fetcher.fetch(&target, blob, &Uncounted).await.map_err(|e| Failure::of(&e))
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a transfer; dropping it removes it.
struct RunningTransfer {
    transfers: Transfers,
    key: (RepositoryName, Digest),
}

impl Drop for RunningTransfer {
    fn drop(&mut self) {
        self.transfers.lock().remove(&self.key);
    }
}

impl Failure {
    fn of(error: &impl Classified) -> Self {
        Self { class: error.class(), text: error.to_string() }
    }

    fn error(&self) -> Error {
        match self.class {
            ErrorClass::Remote(class) => Error::Remote { class, source: self.text.clone().into() },
            _ => Error::Other(self.text.clone().into()),
        }
    }
}

impl Transfer {
    /// Waits until the blob is in the storage.
    pub(super) async fn finished(&mut self) -> Result<(), Error> {
        let stopped = || Error::Other("the transfer of the blob was stopped; request it again".into());
        let end = self.end.wait_for(Option::is_some).await.map_err(|_| stopped())?;
        match end.as_ref().ok_or_else(stopped)? {
            Err(failure) => Err(failure.error()),
            Ok(()) if self.is_mixed.load(Ordering::Relaxed) => {
                Err(Error::Other("the source of the blob changed in between; request it again".into()))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Passes the bytes of a transfer to a client.
struct Feed {
    pieces: mpsc::Sender<Bytes>,
    /// Number of bytes so far.
    position: u64,
    /// The size of the blob in bytes.
    size: u64,
    is_mixed: Arc<AtomicBool>,
}

impl Feed {
    /// Passes bytes that were written at `offset`. Returns the feed unless it has ended.
    async fn pass(mut self, offset: u64, bytes: Bytes) -> Option<Self> {
        if offset != self.position {
            // The transfer began again at another source.
            self.is_mixed.store(true, Ordering::Relaxed);
            return None;
        }
        self.position += bytes.len() as u64;
        if self.position == self.size {
            return None;
        }
        self.pieces.send_timeout(bytes, PATIENCE).await.ok().map(|()| self)
    }
}

/// A repository that passes the bytes of a blob on while they are written.
#[derive(Clone)]
struct FedTarget<S> {
    target: RepositoryTarget<S>,
    id: IngestId,
    feed: Arc<tokio::sync::Mutex<Option<Feed>>>,
}

impl<S: Storage> Provider for FedTarget<S> {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.target.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: std::ops::Range<u64>) -> Result<Bytes, Error> {
        self.target.read(blob, range).await
    }
}

impl<S: Storage> Ingester for FedTarget<S> {
    type Ingest = FedIngest<S>;

    async fn ingest(&self, _: &IngestId, expected: Expected) -> Result<FedIngest<S>, Error> {
        let ingest = self.target.ingest(&self.id, expected).await?;
        Ok(FedIngest { ingest, feed: self.feed.clone() })
    }
}

struct FedIngest<S: Storage> {
    ingest: RepositoryIngest<S>,
    feed: Arc<tokio::sync::Mutex<Option<Feed>>>,
}

impl<S: Storage> Ingest for FedIngest<S> {
    fn offset(&self) -> u64 {
        self.ingest.offset()
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let offset = self.ingest.offset();
        self.ingest.write(bytes.clone()).await?;
        let mut feed = self.feed.lock().await;
        if let Some(open) = feed.take() {
            *feed = open.pass(offset, bytes).await;
        }
        Ok(())
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        self.ingest.expect(expected).await
    }

    async fn pause(self) -> Result<Option<Self>, Error> {
        let Self { ingest, feed } = self;
        Ok(ingest.pause().await?.map(|ingest| Self { ingest, feed }))
    }

    async fn commit(self) -> Result<(Digest, u64), Error> {
        self.ingest.commit().await
    }

    async fn cancel(self) -> Result<(), Error> {
        self.ingest.cancel().await
    }
}
