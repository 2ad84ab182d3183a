//! Copying blobs back from the tier.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use content::operation::{OperationError, Result};
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Observer};
use futures_util::{StreamExt, TryStreamExt, stream};
use library::Library;

use crate::blocking::blocking;
use crate::plan::{MoveRequest, plan_move};
use crate::recall_turns::READS;
use crate::tier::Tier;

/// Number of times that other blobs are moved to make room.
const ATTEMPTS: usize = 4;

/// Whether other blobs leave the disk to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The longest unused ones leave.
    Make,
    /// All stay; without enough room, nothing is copied.
    AsItIs,
}

impl Tier {
    /// Copies blobs back that only the tier has, in their order, a few at a time. Returns the bytes
    /// that were copied. The caller holds the blobs.
    ///
    /// # Errors
    /// The tier does not have a blob or cannot be read, the bytes are wrong, or the disk is full.
    pub async fn recall_all(&self, blobs: Vec<Descriptor>, room: Room, observer: &dyn Observer) -> Result<u64> {
        let wanted: HashSet<Digest> = blobs.iter().map(|blob| blob.digest).collect();
        let (missing, bytes) = self.blocking(move |library| only_in_tier(library, blobs)).await?;
        if missing.is_empty() {
            return Ok(0);
        }
        tracing::info!(blobs = missing.len(), bytes, "copying blobs back from the tier");
        let reserved = self.0.recalls.reserve(bytes);
        if room == Room::Make {
            self.make_room(wanted, observer).await?;
        }
        self.blocking(move |library| library.ensure_room(bytes, "copying blobs back from the tier")).await?;
        let total = missing.iter().map(|blob| blob.size).sum();
        let is_over = AtomicBool::new(false);
        let copy = |blob: Descriptor| {
            let (tier, is_over) = (self.clone(), &is_over);
            async move {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(0);
                }
                let failed = |source| {
                    let location = tier.location().to_owned();
                    store::Error::Recall { blob: blob.digest, location, source }
                };
                tier.recall(&blob).await.map(|()| blob.size).map_err(failed)
            }
        };
        let mut copies = stream::iter(missing).map(copy).buffered(READS);
        let (mut done, mut failed) = (0, None);
        // After a failure, copies that run are awaited: they hold their ingests.
        while let Some(copied) = copies.next().await {
            match copied {
                Ok(size) => {
                    reserved.use_up(size);
                    done += size;
                    observer.bytes(done, total);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
            if failed.is_some() || !observer.goes_on() {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        drop(copies);
        self.tell_due();
        match failed {
            Some(error) => Err(error.into()),
            None if is_over.into_inner() => Err(OperationError::text("the copy was cancelled")),
            None => Ok(total),
        }
    }

    /// Moves other blobs to the tier until all blobs that wait for room fit into the disk and its
    /// budget. The budget may be exceeded if all other blobs are in use.
    pub(crate) async fn make_room(&self, wanted: HashSet<Digest>, observer: &dyn Observer) -> Result<()> {
        let mut kept = wanted;
        for _ in 0..ATTEMPTS {
            let at_least = self.excess().await?;
            if at_least == 0 {
                break;
            }
            let request = MoveRequest {
                at_least,
                loaded: self.loaded(),
                kept: kept.clone(),
                ..MoveRequest::at(SystemTime::now())
            };
            let plan = self.blocking(move |library| plan_move(library, &request)).await?;
            if plan.blobs.is_empty() {
                break;
            }
            let moved = self.move_all(&plan, observer).await?;
            if let Some(reason) = moved.failed.first() {
                tracing::warn!("too few blobs left the disk: {reason}");
            }
            // Blobs that could not leave do not count in the next attempt.
            kept.extend(plan.blobs.iter().map(|blob| blob.digest));
        }
        Ok(())
    }

    /// Copies a blob back, unless the disk has it. A second caller waits for the first. If the tier
    /// has wrong bytes, or lacks the blob, the store counts it as missing from then on.
    pub(crate) async fn recall(&self, blob: &Descriptor) -> Result<(), Error> {
        let turn = self.0.recalls.turn(&blob.digest);
        let _turn = turn.lock().await;
        let (library, digest) = (&self.0.library, blob.digest);
        if blocking(library, move |library| library.blobs().size_on_disk(&digest)).await?.is_some() {
            return Ok(());
        }
        let permit = self.0.recalls.permits.acquire().await.map_err(|e| Error::Other(Box::new(e)))?;
        let copied = self.copy_in_two_attempts(blob).await;
        drop(permit);
        let reason = match copied {
            Ok(()) => {
                return blocking(library, move |library| library.blobs().record_recall(&digest, SystemTime::now()))
                    .await;
            }
            Err(error @ (Error::WrongDigest { .. } | Error::WrongSize { .. })) => {
                blocking(library, move |library| library.blobs().forget_damaged_in_tier(&digest)).await?;
                error.to_string()
            }
            Err(Error::BlobNotFound(_)) => {
                if !self.forget_lost(&digest).await? {
                    return Err(Error::Other("it has just moved to the tier; try again".into()));
                }
                "the tier does not have it".to_owned()
            }
            Err(error) => return Err(error),
        };
        tracing::error!(blob = %digest, tier = self.location(), "a blob cannot come back: {reason}");
        Err(Error::Other(format!("{reason}; `lode repair` fetches the blob from the model's registry").into()))
    }

    /// Takes a blob off the list that the tier does not have, unless it has moved again. Returns
    /// whether it was taken off.
    pub(crate) async fn forget_lost(&self, digest: &Digest) -> Result<bool, Error> {
        let _changing = self.0.changing.write().await;
        if self.place().await?.size(digest).await?.is_some() {
            return Ok(false);
        }
        let digest = *digest;
        blocking(&self.0.library, move |library| library.blobs().forget_lost_in_tier(&digest)).await.map(|()| true)
    }

    /// Copies a blob. Wrong bytes are read once more: they may be those of an earlier attempt, or
    /// have changed on the way.
    async fn copy_in_two_attempts(&self, blob: &Descriptor) -> Result<(), Error> {
        match self.copy(blob).await {
            Err(Error::WrongDigest { .. } | Error::WrongSize { .. }) => self.copy(blob).await,
            other => other,
        }
    }

    async fn copy(&self, blob: &Descriptor) -> Result<(), Error> {
        let expected = Expected::Blob { digest: blob.digest, size: blob.size };
        let mut ingest = self.0.library.ingest(&ingest_id(&blob.digest)?, expected).await?;
        let begin = ingest.offset();
        let mut pieces = self.place().await?.read(blob, begin).await?;
        while let Some(piece) = pieces.try_next().await? {
            ingest.write(piece).await?;
        }
        ingest.commit().await?;
        metrics::counter!("lode_tier_bytes_total", "direction" => "from").increment(blob.size - begin);
        Ok(())
    }
}

/// The id of the ingest of a copy. A pull of the same blob has another one.
fn ingest_id(digest: &Digest) -> Result<IngestId, Error> {
    let hex = digest.hex();
    IngestId::parse(&format!("recall-{}", &hex[..hex.len().min(64)]))
}

/// The blobs that only the tier has, and the bytes that are still to be copied.
fn only_in_tier(library: &Library, blobs: Vec<Descriptor>) -> Result<(Vec<Descriptor>, u64)> {
    let (mut found, mut bytes, mut seen) = (Vec::new(), 0, HashSet::new());
    for blob in blobs {
        if seen.insert(blob.digest)
            && library.blobs().size_on_disk(&blob.digest)?.is_none()
            && library.blobs().size_in_files(&blob.digest)?.is_none()
            && let Some(size) = library.blobs().size_in_tier(&blob.digest)?
        {
            bytes += size.saturating_sub(library.blobs().ingest_size(&ingest_id(&blob.digest)?));
            found.push(Descriptor { size, ..blob });
        }
    }
    Ok((found, bytes))
}
