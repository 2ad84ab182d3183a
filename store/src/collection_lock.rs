//! Blobs in use that no tag, link or lease refers to: a running collection must not delete them.
//!
//! Three kinds of callers can interfere between the collector's check of a blob and its deletion:
//!
//! - A *writer* ([`Guard`]: a create, the end of a pull, a push) finds or commits blobs first and
//!   names them last. While a guard lives, each blob that is committed, or found by
//!   [`Guard::keep`], is *touched* at the current epoch, a number that only grows. A touched blob
//!   stays until every guard that began at or before that epoch has ended. It also stays until a
//!   running collection has ended: the mark of that collection may have missed the name that now
//!   keeps the blob.
//! - A *reader* that takes long ([`Hold`]: an export, a comparison) lists its blobs. Exactly these
//!   stay until it ends.
//! - A client to which a blob was *promised* (`promises`).
//!
//! A caller that finds a blob touches it and looks again. So a blob that is found the second time
//! is touched and stays. The collector checks touches and promises and removes the file while it
//! holds this lock and the lock of promises.

use std::collections::{BTreeSet, HashMap};

use content::Digest;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::{Error, Store};

/// The guards, the holds and the touched blobs.
#[derive(Debug, Default)]
pub(crate) struct CollectionLock {
    state: Mutex<LockState>,
    /// True if touches are recorded. Without guards and collections, a commit or a lease takes no
    /// lock here.
    records_touches: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct LockState {
    epoch: u64,
    /// The epochs at which the live guards began. Each guard begins a new epoch.
    guards: BTreeSet<u64>,
    collecting: bool,
    /// The epoch at which a blob was last touched.
    touched: HashMap<Digest, u64>,
    /// Number of holds on each blob.
    held: HashMap<Digest, usize>,
}

impl LockState {
    /// Whether a collection must not delete a blob for now.
    pub(crate) fn keeps(&self, digest: &Digest) -> bool {
        self.touched.contains_key(digest) || self.held.contains_key(digest)
    }

    /// Forgets touches that no live guard needs.
    fn forget(&mut self) {
        if self.collecting {
            return;
        }
        match self.guards.first() {
            Some(oldest) => self.touched.retain(|_, epoch| *epoch >= *oldest),
            None => self.touched = HashMap::new(),
        }
    }
}

impl CollectionLock {
    pub(crate) fn lock(&self) -> MutexGuard<'_, LockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a caller relies on a blob, before it looks whether the blob exists. Returns
    /// whether touches are recorded at the moment.
    pub(crate) fn touch(&self, digest: &Digest) -> bool {
        let records_touches = self.records_touches.load(Ordering::SeqCst);
        if records_touches {
            let mut state = self.lock();
            let epoch = state.epoch;
            state.touched.insert(*digest, epoch);
        }
        records_touches
    }

    fn enter(&self) -> u64 {
        let mut state = self.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        state.guards.insert(epoch);
        self.records_touches.store(true, Ordering::SeqCst);
        epoch
    }

    fn leave(&self, epoch: u64) {
        let mut state = self.lock();
        let was_oldest = state.guards.first() == Some(&epoch);
        state.guards.remove(&epoch);
        // Only the oldest guard keeps touches that younger guards do not.
        if was_oldest {
            state.forget();
        }
        self.records_touches.store(state.collecting || !state.guards.is_empty(), Ordering::SeqCst);
    }

    /// Marks that a collection is running. There is only one at a time.
    pub(crate) fn begin_collection(&self) -> Collecting<'_> {
        let mut state = self.lock();
        state.collecting = true;
        self.records_touches.store(true, Ordering::SeqCst);
        Collecting(self)
    }
}

/// A running collection. It also ends when the collector fails.
pub(crate) struct Collecting<'a>(&'a CollectionLock);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.collecting = false;
        state.forget();
        self.0.records_touches.store(!state.guards.is_empty(), Ordering::SeqCst);
    }
}

/// Protects blobs from collection while it lives: blobs that are committed, and blobs that
/// [`keep`](Self::keep) finds. For writers of content that nothing refers to yet.
#[must_use = "what is added is kept only while the guard lives"]
#[derive(Debug)]
pub struct Guard {
    store: Store,
    epoch: u64,
}

impl Guard {
    /// Keeps a blob from collection while the guard lives, if it is in the store. Returns its
    /// length in bytes, or `None` if it is not in the store.
    ///
    /// For a document, keep the blobs that it refers to as well.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn keep(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        self.store.touch_found(digest)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.store.0.collection_lock.leave(self.epoch);
    }
}

/// Keeps blobs from collection while they are read.
#[must_use = "the blobs are kept only while this lives"]
#[derive(Debug)]
pub struct Hold {
    store: Store,
    digests: Vec<Digest>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.store.0.collection_lock.lock();
        let (collecting, epoch) = (state.collecting, state.epoch);
        for digest in &self.digests {
            if collecting {
                // The blob may have got a name that the running collection did not see.
                state.touched.insert(*digest, epoch);
            }
            if let Some(count) = state.held.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    state.held.remove(digest);
                }
            }
        }
    }
}

impl Store {
    /// Touches a blob if it exists, and returns its length in bytes.
    pub(crate) fn touch_found(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let found = self.blobs().size(digest)?;
        // Missing blobs are not noted: queries for arbitrary digests would fill the table.
        if found.is_some() && self.0.collection_lock.touch(digest) { self.blobs().size(digest) } else { Ok(found) }
    }

    /// Keeps every blob from collection that is committed while the guard lives, and each existing
    /// blob that is passed to [`Guard::keep`].
    pub fn guard(&self) -> Guard {
        Guard { store: self.clone(), epoch: self.0.collection_lock.enter() }
    }

    /// Keeps these blobs from collection, if they exist when this returns. Look for them
    /// afterwards, not before.
    pub fn hold(&self, digests: Vec<Digest>) -> Hold {
        let mut state = self.0.collection_lock.lock();
        for digest in &digests {
            *state.held.entry(*digest).or_default() += 1;
        }
        drop(state);
        Hold { store: self.clone(), digests }
    }
}
