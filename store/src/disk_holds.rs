//! Blobs that must not leave the disk for the tier: those of loaded models.
//!
//! Unlike a [`Hold`](crate::Hold), a disk hold does not keep a blob from collection, and does not
//! keep the store open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use content::Digest;

use crate::Store;

/// Number of holds of each blob.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskHolds(Arc<Mutex<HashMap<Digest, usize>>>);

impl DiskHolds {
    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.lock().contains_key(digest)
    }
}

/// Keeps blobs on the disk while it lives, if they are there.
#[must_use = "the blobs are kept only while this lives"]
#[derive(Debug)]
pub struct DiskHold {
    holds: DiskHolds,
    digests: Vec<Digest>,
}

impl Drop for DiskHold {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        for digest in &self.digests {
            if let Some(count) = holds.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    holds.remove(digest);
                }
            }
        }
    }
}

impl Store {
    /// Keeps blobs on the disk that are there. Look for them afterwards, not before.
    pub fn hold_on_disk(&self, digests: Vec<Digest>) -> DiskHold {
        let holds = self.0.disk_holds.clone();
        {
            // A blob that is leaving the disk at the moment has left when this returns.
            let _collection_lock = self.0.collection_lock.lock();
            let mut all = holds.lock();
            for digest in &digests {
                *all.entry(*digest).or_default() += 1;
            }
        }
        DiskHold { holds, digests }
    }
}
