//! Moving blobs to the tier, and removing blobs from it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use content::operation::Result;
use content::tier::Pieces;
use content::{Descriptor, Error, Observer, Provider};
use futures_util::{StreamExt, stream};
use library::Library;
use manifests::media_types;

use crate::blocking::blocking;
use crate::plan::{MovePlan, MoveRequest, plan_move};
use crate::tier::Tier;

/// Number of blobs that are put at a time.
const PUTS: usize = 4;
/// Bytes that are read at a time.
const PIECE: u64 = 4 << 20;
/// Bytes at the beginning of a blob that stay in the store, if its header is not known to be
/// longer.
const HEAD: u64 = 4 << 10;
/// Maximum number of reported failures.
const MOST_FAILURES: usize = 10;

/// The result of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of blobs that left the disk.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were sent to the tier. Blobs that came back and did not change are not sent
    /// again.
    pub sent: u64,
    /// Number of blobs that stay because they are being read or added.
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
    /// Set if the tier fails, so that not every blob waits for its retries.
    is_over: AtomicBool,
}

impl Tier {
    /// Whether the disk has more than its budget.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn is_over_budget(&self) -> Result<bool> {
        Ok(self.0.policy.disk.is_some() && self.excess(0).await? > 0)
    }

    /// Moves blobs as the policy says, and removes blobs from the tier that the store no longer
    /// needs.
    ///
    /// # Errors
    /// The store or the tier cannot be used.
    pub async fn maintain(&self, now: SystemTime, observer: &dyn Observer) -> Result<Moved> {
        let policy = self.0.policy;
        let request = MoveRequest {
            now,
            after: policy.after,
            models: std::collections::HashSet::new(),
            free: self.excess(0).await?,
            kept: self.loaded(),
        };
        let plan = self.blocking(move |library| plan_move(library, &request)).await?;
        self.execute(&plan, observer).await
    }

    /// The bytes that must leave the disk so that `more` bytes fit into the budget and on the disk.
    pub(crate) async fn excess(&self, more: u64) -> Result<u64> {
        let budget = self.0.policy.disk;
        self.blocking(move |library| {
            let lacking = more.saturating_sub(library.free_space()?);
            let Some(budget) = budget else { return Ok(lacking) };
            Ok(lacking.max(library.stored_bytes().saturating_add(more).saturating_sub(budget)))
        })
        .await
    }

    /// Moves the blobs of a plan. Failures of single blobs are reported in the result; if the tier
    /// itself fails, the rest stays on the disk.
    ///
    /// # Errors
    /// The tier cannot be opened.
    pub async fn execute(&self, plan: &MovePlan, observer: &dyn Observer) -> Result<Moved> {
        {
            let _changing = self.0.changing.write().await;
            self.remove_unneeded().await?;
        }
        let progress = Progress::default();
        if !plan.blobs.is_empty() {
            self.place().await?;
        }
        let total = plan.bytes();
        let done = AtomicU64::new(0);
        stream::iter(plan.blobs.clone())
            .for_each_concurrent(PUTS, |blob| {
                let (progress, done) = (&progress, &done);
                async move {
                    if progress.is_over.load(Ordering::Relaxed) || !observer.goes_on() {
                        return;
                    }
                    if let Err(error) = self.move_blob(&blob, progress).await {
                        progress.fail(&blob, &error);
                    }
                    observer.bytes(done.fetch_add(blob.size, Ordering::Relaxed) + blob.size, total);
                }
            })
            .await;
        Ok(progress.moved())
    }

    async fn move_blob(&self, blob: &Descriptor, progress: &Progress) -> Result<(), Error> {
        let _changing = self.0.changing.read().await;
        let library = self.0.library.clone();
        let digest = blob.digest;
        let looked = blocking(&library, move |library| {
            Ok((library.blobs().size_in_tier(&digest)?, library.blobs().is_tier_removal(&digest)?))
        });
        let (there, is_removal) = looked.await?;
        if is_removal {
            // It was removed and added again. The next move follows the removal from the tier.
            progress.in_use.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if there.is_none() {
            // Held so that a collection does not remove it meanwhile.
            let _held = library.hold(vec![digest]);
            self.place().await?.put(blob, pieces(&library, blob)).await?;
            let own = blob.clone();
            blocking(&library, move |library| library.blobs().record_in_tier(&own, &head(library, &own)?)).await?;
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

    /// Removes blobs from the tier that the store no longer needs. The caller excludes moves.
    pub(crate) async fn remove_unneeded(&self) -> Result<(), Error> {
        let library = self.0.library.clone();
        let removals = blocking(&library, |library| library.blobs().tier_removals()).await?;
        if removals.is_empty() {
            return Ok(());
        }
        let place = self.place().await?;
        for digest in removals {
            // With an entry, the tier still has to have it.
            if blocking(&library, move |library| library.blobs().size_in_tier(&digest)).await?.is_none() {
                place.remove(&digest).await?;
            }
            blocking(&library, move |library| library.blobs().end_tier_removal(&digest)).await?;
        }
        Ok(())
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
                self.is_over.store(true, Ordering::Relaxed);
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
fn pieces(library: &Library, blob: &Descriptor) -> Pieces {
    let (library, blob) = (library.clone(), blob.clone());
    stream::try_unfold(0, move |offset| {
        let (library, blob) = (library.clone(), blob.clone());
        async move {
            if offset >= blob.size {
                return Ok(None);
            }
            let piece: Bytes = library.read(&blob, offset..offset + PIECE).await?;
            // A shorter file ends the stream, and its size is refused.
            let next = if piece.is_empty() { blob.size } else { offset + piece.len() as u64 };
            Ok(Some((piece, next)))
        }
    })
    .boxed()
}

/// The first bytes of a blob that stay in the store: the header of a safetensors file.
fn head(library: &Library, blob: &Descriptor) -> Result<Vec<u8>, store::Error> {
    let file = library.blobs().open(&blob.digest)?;
    let mut length = HEAD;
    if blob.media_type == media_types::TENSOR {
        let mut header = [0; 8];
        file.read_exact_at(&mut header, 0)?;
        let own = u64::from_le_bytes(header).saturating_add(8);
        length = if own <= store::MAX_HEAD { own } else { HEAD };
    }
    file.read(0..length)
}
