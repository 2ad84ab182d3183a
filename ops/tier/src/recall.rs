//! Copying blobs back from the tier.

use std::future::Future;
use std::sync::{Arc, Weak};

use content::operation::{OperationError, Result};
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Observer};
use futures_util::{StreamExt, TryStreamExt, stream};
use store::Recall;
use tokio::runtime::Handle;

use crate::blocking::blocking;
use crate::plan::{MoveRequest, plan_move};
use crate::recall_turns::READS;
use crate::tier::{Inner, Tier};

impl Tier {
    /// Copies blobs back that only the tier has, in their order, a few at a time. Returns the bytes
    /// that were copied. The caller holds the blobs. Other blobs leave the disk first if it has too
    /// little room.
    ///
    /// # Errors
    /// The tier does not have a blob or cannot be read, the bytes are wrong, or the disk is full.
    pub async fn recall_all(&self, blobs: Vec<Descriptor>, observer: &dyn Observer) -> Result<u64> {
        let missing = self.blocking(move |library| only_in_tier(library, blobs)).await?;
        let total = missing.iter().map(|blob| blob.size).sum();
        if total == 0 {
            return Ok(0);
        }
        tracing::info!(blobs = missing.len(), bytes = total, "copying blobs back from the tier");
        self.make_room(total, observer).await?;
        let mut done = 0;
        let copy = |blob: Descriptor| {
            let tier = self.clone();
            async move {
                let failed = |source| {
                    let location = tier.location().to_owned();
                    store::Error::Recall { blob: blob.digest, location, source }
                };
                tier.recall(&blob).await.map(|()| blob.size).map_err(failed)
            }
        };
        let mut copies = stream::iter(missing).map(copy).buffered(READS);
        while let Some(size) = copies.try_next().await? {
            done += size;
            observer.bytes(done, total);
            if !observer.goes_on() {
                return Err(OperationError::text("the copy was cancelled"));
            }
        }
        self.tell_due();
        Ok(total)
    }

    /// Moves other blobs to the tier until `bytes` more fit into the disk and its budget. The
    /// budget may be exceeded if all other blobs are in use; the disk may not.
    async fn make_room(&self, bytes: u64, observer: &dyn Observer) -> Result<()> {
        let free = self.excess(bytes).await?;
        if free > 0 {
            let request = MoveRequest {
                now: std::time::SystemTime::now(),
                after: None,
                models: std::collections::HashSet::new(),
                free,
                kept: self.loaded(),
            };
            let plan = self.blocking(move |library| plan_move(library, &request)).await?;
            let moved = self.execute(&plan, observer).await?;
            if let Some(reason) = moved.failed.first() {
                tracing::warn!("too few blobs left the disk: {reason}");
            }
        }
        self.blocking(move |library| library.ensure_room(bytes, "copying blobs back from the tier")).await
    }

    /// Copies a blob back, unless the disk has it. A second caller waits for the first.
    pub(crate) async fn recall(&self, blob: &Descriptor) -> Result<(), Error> {
        let turn = self.0.recalls.turn(&blob.digest);
        let _turn = turn.lock().await;
        let (library, digest) = (&self.0.library, blob.digest);
        if blocking(library, move |library| library.blobs().size_on_disk(&digest)).await?.is_some() {
            return Ok(());
        }
        let _permit = self.0.recalls.permits.acquire().await.map_err(|e| Error::Other(Box::new(e)))?;
        let is_resumed = match self.copy(blob).await {
            Err(Error::WrongDigest { .. } | Error::WrongSize { .. }) => true,
            other => return other,
        };
        // The bytes of an earlier attempt may have been damaged on the disk. They were discarded.
        tracing::warn!(blob = %blob.digest, is_resumed, "the tier sent wrong bytes; trying once more");
        self.copy(blob).await
    }

    async fn copy(&self, blob: &Descriptor) -> Result<(), Error> {
        let expected = Expected::Blob { digest: blob.digest, size: blob.size };
        let mut ingest = self.0.library.ingest(&ingest_id(&blob.digest)?, expected).await?;
        let read = self.place().await?.read(blob, ingest.offset()).await;
        let mut pieces = read.map_err(|error| match error {
            Error::BlobNotFound(_) => {
                Error::Other("the tier does not have it; `lode repair` fetches it from the model's registry".into())
            }
            other => other,
        })?;
        while let Some(piece) = pieces.try_next().await? {
            ingest.write(piece).await?;
        }
        ingest.commit().await?;
        metrics::counter!("lode_tier_bytes_total", "direction" => "from").increment(blob.size);
        Ok(())
    }
}

/// The id of the ingest of a copy. A pull of the same blob has another one.
fn ingest_id(digest: &Digest) -> Result<IngestId, Error> {
    let hex = digest.hex();
    IngestId::parse(&format!("recall-{}", &hex[..hex.len().min(64)]))
}

/// The blobs that only the tier has.
fn only_in_tier(library: &library::Library, blobs: Vec<Descriptor>) -> Result<Vec<Descriptor>> {
    let mut found = Vec::new();
    for blob in blobs {
        if library.blobs().size_on_disk(&blob.digest)?.is_none()
            && let Some(size) = library.blobs().size_in_tier(&blob.digest)?
        {
            found.push(Descriptor { size, ..blob });
        }
    }
    Ok(found)
}

/// Copies blobs back for callers that block, on the runtime of the daemon.
#[derive(Debug)]
pub(crate) struct Recaller {
    /// The library of the tier keeps the store open, and the store has this value.
    tier: Weak<Inner>,
    runtime: Handle,
}

impl Recaller {
    pub(crate) fn new(tier: &Tier, runtime: Handle) -> Self {
        Self { tier: Arc::downgrade(&tier.0), runtime }
    }

    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Tier) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let stopping = || Error::Other("the daemon is stopping".into());
        let tier = Tier(self.tier.upgrade().ok_or_else(stopping)?);
        let (sender, done) = std::sync::mpsc::channel();
        let work = work(tier);
        // A task, because a thread of the runtime cannot wait for a future in another way.
        drop(self.runtime.spawn(async move { drop(sender.send(work.await)) }));
        done.recv().map_err(|_| stopping())?
    }
}

impl Recall for Recaller {
    fn recall(&self, blob: &Descriptor) -> Result<(), Error> {
        let blob = blob.clone();
        self.run(|tier| async move {
            tier.recall(&blob).await?;
            tier.tell_due();
            Ok(())
        })
    }

    fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let digest = *digest;
        self.run(|tier| async move { tier.place().await?.size(&digest).await })
    }
}
