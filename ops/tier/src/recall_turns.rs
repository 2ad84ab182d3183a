//! Limits copies back: one for each blob, and a few in all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use content::Digest;
use tokio::sync::Semaphore;

/// Number of blobs that are copied back at a time.
pub(crate) const READS: usize = 8;

/// Copies in progress.
#[derive(Debug)]
pub(crate) struct RecallTurns {
    /// One lock for each blob that is being copied.
    turns: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    pub(crate) permits: Semaphore,
}

impl Default for RecallTurns {
    fn default() -> Self {
        Self { turns: Mutex::default(), permits: Semaphore::new(READS) }
    }
}

impl RecallTurns {
    /// The lock of a blob.
    pub(crate) fn turn(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(digest).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(*digest, Arc::downgrade(&turn));
        turn
    }
}
