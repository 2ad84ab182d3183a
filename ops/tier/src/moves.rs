//! Moving blobs from the disk to the tier.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use content::operation::{Classified, ErrorClass, Result};
use content::tier::Pieces;
use content::{Descriptor, Error, Observer};
use futures_util::{StreamExt, stream};
use store::BlobFile;

use crate::blocking::blocking;
use crate::plan::{MovePlan, MoveRequest, plan_move};
use crate::tier::Tier;

/// Number of blobs that are put at a time.
const PUTS: usize = 4;
/// Bytes that are read at a time.
const PIECE: u64 = 4 << 20;
/// Maximum number of reported failures.
const MOST_FAILURES: usize = 10;
/// Number of failures in a row after which a move ends: the disk or the tier does not work.
const MOST_IN_A_ROW: usize = 8;

/// The result of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of blobs that left the disk.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were sent to the tier. Blobs that came back earlier are not sent again.
    pub sent: u64,
    /// Number of blobs that stay for now: they are being read or added, belong to a loaded model,
    /// have left already, or wait for a removal from the tier.
    pub in_use: u64,
    /// Why blobs could not move; the first reasons.
    pub failed: Vec<String>,
}

/// Counts of a move in progress.
#[derive(Debug, Default)]
struct Progress {
    blobs: AtomicU64,
    bytes: AtomicU64,
    sent: AtomicU64,
    in_use: AtomicU64,
    failed: Mutex<Vec<String>>,
    in_a_row: AtomicUsize,
    /// Set if the tier fails, so that not every blob waits for its retries.
    is_over: AtomicBool,
}

impl Tier {
    /// Moves blobs of models that were not used for long, and so many others that `at_least` bytes
    /// leave the disk (see [`Tier::over_budget`]). Removes blobs from the tier that the store no
    /// longer needs.
    ///
    /// # Errors
    /// The store or the tier cannot be used.
    pub async fn maintain(&self, now: SystemTime, at_least: u64, observer: &dyn Observer) -> Result<Moved> {
        let request =
            MoveRequest { after: self.0.policy.after, at_least, loaded: self.loaded(), ..MoveRequest::at(now) };
        let plan = self.blocking(move |library| plan_move(library, &request)).await?;
        self.execute(&plan, observer).await
    }

    /// The bytes that the disk has beyond its budget. All blobs on the disk are looked at.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn over_budget(&self) -> Result<u64> {
        if self.0.policy.disk.is_none() { Ok(0) } else { self.excess().await }
    }

    /// The bytes that must leave the disk for its budget, and for copies back that are waiting for
    /// room.
    pub(crate) async fn excess(&self) -> Result<u64> {
        let (budget, reserved) = (self.0.policy.disk, self.0.recalls.reserved());
        self.blocking(move |library| {
            let lacking = reserved.saturating_sub(library.room_for(reserved)?);
            let Some(budget) = budget else { return Ok(lacking) };
            Ok(lacking.max(library.stored_bytes().saturating_add(reserved).saturating_sub(budget)))
        })
        .await
    }

    /// Moves the blobs of a plan, after removing blobs from the tier that the store no longer
    /// needs. Failures of single blobs are reported in the result; if the tier itself fails, the
    /// rest stays on the disk.
    ///
    /// # Errors
    /// The tier cannot be opened.
    pub async fn execute(&self, plan: &MovePlan, observer: &dyn Observer) -> Result<Moved> {
        self.remove_unneeded().await?;
        self.move_all(plan, observer).await
    }

    pub(crate) async fn move_all(&self, plan: &MovePlan, observer: &dyn Observer) -> Result<Moved> {
        if !plan.blobs.is_empty() {
            self.place().await?;
        }
        let progress = Progress::default();
        let (total, done) = (plan.bytes(), AtomicU64::new(0));
        stream::iter(plan.blobs.clone())
            .for_each_concurrent(PUTS, |blob| {
                let (progress, done) = (&progress, &done);
                async move {
                    if progress.is_over.load(Ordering::Relaxed) || !observer.goes_on() {
                        return;
                    }
                    match self.move_blob(&blob, progress).await {
                        Ok(()) => progress.in_a_row.store(0, Ordering::Relaxed),
                        Err(error) => progress.fail(&blob, &error),
                    }
                    observer.bytes(done.fetch_add(blob.size, Ordering::Relaxed) + blob.size, total);
                }
            })
            .await;
        Ok(progress.moved())
    }

    async fn move_blob(&self, blob: &Descriptor, progress: &Progress) -> Result<(), Error> {
        let (library, digest) = (self.0.library.clone(), blob.digest);
        // Another move of the blob comes first. Taken before the lock, as copies back do.
        let turn = self.0.recalls.turn(&digest);
        let _turn = turn.lock().await;
        let _changing = self.0.changing.read().await;
        let is_removal = blocking(&library, move |library| library.blobs().is_tier_removal(&digest)).await?;
        if is_removal {
            // The blob was removed and added again. It moves after the tier has removed it.
            progress.in_use.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if !self.is_in_tier(blob).await? {
            // Held so that a collection does not remove it meanwhile.
            let _held = library.hold(vec![digest]);
            // Not through the library, which would copy a blob back that has left by now.
            let opened = blocking(&library, move |library| library.blobs().open_on_disk(&digest)).await?;
            let Some(file) = opened.map(Arc::new) else { return Ok(()) };
            let place = self.place().await?;
            if blocking(&library, move |library| library.blobs().is_damaged_in_tier(&digest)).await? {
                // Its wrong bytes may have the right size.
                place.remove(&digest).await?;
            }
            place.put(blob, pieces(file.clone())).await?;
            let own = blob.clone();
            blocking(&library, move |library| library.blobs().record_in_tier(&own, &head(&file)?)).await?;
            progress.sent.fetch_add(blob.size, Ordering::Relaxed);
            metrics::counter!("lode_tier_bytes_total", "direction" => "to").increment(blob.size);
        }
        match blocking(&library, move |library| library.blobs().leave_to_tier(&digest)).await? {
            Some(size) => {
                progress.blobs.fetch_add(1, Ordering::Relaxed);
                progress.bytes.fetch_add(size, Ordering::Relaxed);
            }
            None => drop(progress.in_use.fetch_add(1, Ordering::Relaxed)),
        }
        Ok(())
    }

    /// Whether the store has an entry for a blob, and the tier still has the blob.
    async fn is_in_tier(&self, blob: &Descriptor) -> Result<bool, Error> {
        let digest = blob.digest;
        let entry = blocking(&self.0.library, move |library| library.blobs().size_in_tier(&digest)).await?;
        Ok(entry == Some(blob.size) && self.place().await?.size(&digest).await? == Some(blob.size))
    }
}

impl Progress {
    fn fail(&self, blob: &Descriptor, error: &Error) {
        let text = match error {
            Error::WrongDigest { .. } | Error::WrongSize { .. } => {
                format!("blob `{}` on the disk is damaged ({error}); `lode repair` fetches it again", blob.digest)
            }
            // It was removed since the plan was made.
            Error::BlobNotFound(_) => return,
            error => {
                let failures = self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
                if failures >= MOST_IN_A_ROW || matches!(error.class(), ErrorClass::Remote(_)) {
                    self.is_over.store(true, Ordering::Relaxed);
                }
                format!("blob `{}` stays on the disk: {error}", blob.digest)
            }
        };
        tracing::warn!("{text}");
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() < MOST_FAILURES {
            failed.push(text);
        }
    }

    fn moved(self) -> Moved {
        Moved {
            blobs: self.blobs.into_inner(),
            bytes: self.bytes.into_inner(),
            sent: self.sent.into_inner(),
            in_use: self.in_use.into_inner(),
            failed: self.failed.into_inner().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The bytes of a blob on the disk.
fn pieces(file: Arc<BlobFile>) -> Pieces {
    let next = move |offset| {
        let file = file.clone();
        async move {
            if offset >= file.size() {
                return Ok(None);
            }
            let read = tokio::task::spawn_blocking(move || file.read(offset..offset + PIECE));
            let piece = Bytes::from(read.await.map_err(|e| Error::Other(Box::new(e)))??);
            let next = offset + piece.len() as u64;
            Ok(Some((piece, next)))
        }
    };
    stream::try_unfold(0, next).boxed()
}

/// The first bytes of a blob that stay in the store: the header of the safetensors file, unless it
/// is very long.
pub(crate) fn head(file: &BlobFile) -> Result<Vec<u8>, store::Error> {
    let length = file.read(0..8)?;
    let length = <[u8; 8]>::try_from(length).map_or(0, u64::from_le_bytes).saturating_add(8);
    if length <= store::MAX_HEAD { file.read(0..length) } else { Ok(Vec::new()) }
}
