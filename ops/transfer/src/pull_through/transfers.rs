//! Transfers of blobs from other registries to the storage: one for each blob of a repository, a
//! few at a time.
//!
//! The client that begins a transfer gets the bytes while they arrive, if it wants all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use content::operation::{Classified, ErrorClass};
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};
use registry::RepositoryName;
use registry::client::{FetchError, Fetcher};
use registry::server::Storage;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::Instant;

use super::shared_work::{Running, SharedWork, Waiters};
use crate::repository_target::{RepositoryIngest, RepositoryTarget};
use crate::upstream::Uncounted;

/// Number of transfers that run at a time. Each holds up to 80 MiB: parts that are fetched, parts
/// that are stored, and pieces for the client.
const AT_ONCE: usize = 8;
/// Number of transfers that run or wait.
const MOST: usize = 256;
/// Number of pieces that wait for the client of a transfer.
const PIECES: usize = 8;
/// How long a transfer waits for its client, in all. Others may wait for the transfer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Transfers in progress. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Transfers {
    work: SharedWork<(RepositoryName, Digest), ()>,
    permits: Arc<Semaphore>,
    sharing: BlobSharing,
}

/// Which blobs of this registry a copy may contain without a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobSharing {
    /// Blobs of any repository: every client may read all of them.
    All,
    /// Only its own: a registry that claims to have a blob must send it.
    Own,
}

/// A transfer from the view of a client.
pub(super) struct Transfer {
    pub(super) running: Running<()>,
    /// The bytes from the beginning of the blob. They end when the client is too slow, and before
    /// the last piece, which the client may see only after the blob was verified.
    pub(super) live: Option<mpsc::Receiver<Bytes>>,
    /// Whether the bytes may be wrong, because they came from several sources.
    is_mixed: Arc<AtomicBool>,
}

impl Transfer {
    /// Fails if the bytes so far came from several sources.
    pub(super) fn ensure_one_source(&self) -> Result<(), Error> {
        if self.is_mixed.load(Ordering::Relaxed) {
            return Err(Error::Other("the source of the blob changed in between; request it again".into()));
        }
        Ok(())
    }
}

impl Transfers {
    pub(super) fn new(sharing: BlobSharing) -> Self {
        Self { work: SharedWork::default(), permits: Arc::new(Semaphore::new(AT_ONCE)), sharing }
    }

    /// Joins the transfer of a blob, or begins it; `None` if too many transfers wait.
    pub(super) fn join<S: Storage>(
        &self,
        target: RepositoryTarget<S>,
        fetcher: Fetcher,
        blob: &Descriptor,
        wants_all: bool,
    ) -> Option<Transfer> {
        let key = (target.repository.name.clone(), blob.digest);
        if self.work.find(&key).is_none() && self.work.len() >= MOST {
            return None;
        }
        let is_mixed: Arc<AtomicBool> = Arc::default();
        let mut live = None;
        let running = self.work.join(key, |waiters| {
            let (pieces, receiver) = mpsc::channel(PIECES);
            live = wants_all.then_some(receiver);
            let feed = Feed {
                pieces: wants_all.then_some(pieces),
                position: 0,
                size: blob.size,
                patience: PATIENCE,
                is_mixed: is_mixed.clone(),
            };
            self.clone().copy(target, fetcher, blob.clone(), feed, waiters)
        });
        Some(Transfer { running, live, is_mixed })
    }

    async fn copy<S: Storage>(
        self,
        target: RepositoryTarget<S>,
        fetcher: Fetcher,
        blob: Descriptor,
        feed: Feed,
        waiters: Waiters<()>,
    ) -> Result<(), Error> {
        let may_share = self.sharing == BlobSharing::All;
        if may_share && target.storage.mount(None, &target.repository, &blob.digest).await? {
            return Ok(());
        }
        let _permit = self.permits.acquire().await.expect("invariant: the semaphore is never closed");
        if !waiters.are_there() {
            return Err(Error::Other("no client waits for the blob any more".into()));
        }
        // Another replica that copies the same blob must not share the ingest.
        let id = IngestId::parse(&format!("copy-{:032x}", rand::random::<u128>()))?;
        let target = TeeTarget { target, id, feed: Arc::new(Mutex::new(feed)) };
        let Err(failed) = fetcher.fetch(&target, &blob, &Uncounted).await else { return Ok(()) };
        tracing::warn!(digest = %blob.digest, "a blob was not copied: {failed}");
        if let Err(error) = target.cancel().await {
            tracing::warn!("an upload that failed stays for now: {error}");
        }
        Err(match (failed.class(), failed) {
            (_, FetchError::Store(error)) => error,
            (ErrorClass::Remote(class), failed) => Error::Remote { class, source: Box::new(failed) },
            (_, failed) => Error::Other(Box::new(failed)),
        })
    }
}

/// Passes the bytes of a transfer to a client.
struct Feed {
    /// `None` if the client needs no more.
    pieces: Option<mpsc::Sender<Bytes>>,
    /// Number of bytes so far.
    position: u64,
    /// The size of the blob in bytes.
    size: u64,
    /// How long the transfer may still wait for the client.
    patience: Duration,
    is_mixed: Arc<AtomicBool>,
}

impl Feed {
    /// Passes bytes that were written at `offset`.
    async fn pass(&mut self, offset: u64, bytes: Bytes) {
        if offset < self.position {
            // The transfer began again at another source.
            self.is_mixed.store(true, Ordering::Relaxed);
            self.pieces = None;
        }
        self.position = offset + bytes.len() as u64;
        if self.position == self.size {
            self.pieces = None;
        }
        let Some(pieces) = &self.pieces else { return };
        let begin = Instant::now();
        if pieces.send_timeout(bytes, self.patience).await.is_err() {
            self.pieces = None;
        }
        self.patience = self.patience.saturating_sub(begin.elapsed());
    }
}

/// A repository that gets a blob, and passes its bytes on.
#[derive(Clone)]
struct TeeTarget<S> {
    target: RepositoryTarget<S>,
    id: IngestId,
    feed: Arc<Mutex<Feed>>,
}

impl<S: Storage> TeeTarget<S> {
    /// Removes what an interrupted transfer has stored.
    async fn cancel(&self) -> Result<(), Error> {
        match self.target.storage.resume(&self.id).await? {
            Some(ingest) => ingest.cancel().await,
            None => Ok(()),
        }
    }
}

impl<S: Storage> Provider for TeeTarget<S> {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.target.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: std::ops::Range<u64>) -> Result<Bytes, Error> {
        self.target.read(blob, range).await
    }
}

impl<S: Storage> Ingester for TeeTarget<S> {
    type Ingest = TeeIngest<S>;

    async fn ingest(&self, _: &IngestId, expected: Expected) -> Result<TeeIngest<S>, Error> {
        let ingest = self.target.ingest(&self.id, expected).await?;
        Ok(TeeIngest { ingest, feed: self.feed.clone() })
    }
}

struct TeeIngest<S: Storage> {
    ingest: RepositoryIngest<S>,
    feed: Arc<Mutex<Feed>>,
}

impl<S: Storage> Ingest for TeeIngest<S> {
    fn offset(&self) -> u64 {
        self.ingest.offset()
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let offset = self.ingest.offset();
        self.ingest.write(bytes.clone()).await?;
        self.feed.lock().await.pass(offset, bytes).await;
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
