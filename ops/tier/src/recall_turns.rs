//! Limits of copies back: one for each blob, a few in all, and the room that they will take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    reserved: Arc<AtomicU64>,
}

/// Bytes that copies will write. Dropping it gives back the bytes that were not used up.
#[derive(Debug)]
pub(crate) struct ReservedRoom {
    all: Arc<AtomicU64>,
    own: AtomicU64,
}

impl ReservedRoom {
    /// Counts bytes that are on the disk by now.
    pub(crate) fn use_up(&self, bytes: u64) {
        let own = self.own.load(Ordering::Relaxed).min(bytes);
        self.own.fetch_sub(own, Ordering::Relaxed);
        self.all.fetch_sub(own, Ordering::Relaxed);
    }
}

impl Drop for ReservedRoom {
    fn drop(&mut self) {
        self.use_up(u64::MAX);
    }
}

impl Default for RecallTurns {
    fn default() -> Self {
        Self { turns: Mutex::default(), permits: Semaphore::new(READS), reserved: Arc::default() }
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

    /// Reserves room for a copy.
    pub(crate) fn reserve(&self, bytes: u64) -> ReservedRoom {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        ReservedRoom { all: self.reserved.clone(), own: AtomicU64::new(bytes) }
    }

    /// Bytes of all reservations.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}
