//! What a collection that is under way has to leave alone, beside what it can reach from tags, links and leases.
//!
//! Three sorts of callers come between a collector's look and its deletion:
//!
//! - Who *adds* content ([`Guard`]: a create, a pull's end, a push) finds or commits blobs first and names them last. While a
//!   guard lives, every blob that is committed or found to be here is *touched*, at an epoch that only grows. A touched blob
//!   stays until all guards that began before have ended, and until a collection that was under way has ended: its mark may
//!   have missed the name that keeps the blob now.
//! - Who *reads* a model for long ([`Hold`]: an export, a comparison) says which blobs. They stay until it ends, and only they.
//! - Who was *promised* a blob (`promises`).
//!
//! Touching comes before looking: a blob that was seen is either touched, so that it stays, or was deleted before it was looked
//! at, so that it was not seen. The collector looks at all of this and removes a file under one lock.

use std::collections::{BTreeSet, HashMap};

use content::Digest;

use crate::Store;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Who adds, who reads, and what was touched.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Whether touches are noted: a look at a blob costs no lock where nobody adds and nobody collects.
    noting: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    epoch: u64,
    /// The epochs at which guards began that live; each begins one.
    guards: BTreeSet<u64>,
    collecting: bool,
    /// The epoch at which a blob was last touched.
    touched: HashMap<Digest, u64>,
    /// How many readers hold a blob.
    held: HashMap<Digest, usize>,
}

impl State {
    /// Whether a collection has to leave a blob alone for now.
    pub(crate) fn keeps(&self, digest: &Digest) -> bool {
        self.touched.contains_key(digest) || self.held.contains_key(digest)
    }

    /// Forgets touches that no guard needs.
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

impl Gate {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that somebody relies on a blob, before they look whether it is there; says whether there is a reason to note it.
    pub(crate) fn touch(&self, digest: &Digest) -> bool {
        let noting = self.noting.load(Ordering::SeqCst);
        if noting {
            let mut state = self.lock();
            let epoch = state.epoch;
            state.touched.insert(*digest, epoch);
        }
        noting
    }

    fn enter(&self) -> u64 {
        let mut state = self.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        state.guards.insert(epoch);
        self.noting.store(true, Ordering::SeqCst);
        epoch
    }

    fn leave(&self, epoch: u64) {
        let mut state = self.lock();
        let was_oldest = state.guards.first() == Some(&epoch);
        state.guards.remove(&epoch);
        // Only the oldest keeps what younger ones do not.
        if was_oldest {
            state.forget();
        }
        self.noting.store(state.collecting || !state.guards.is_empty(), Ordering::SeqCst);
    }

    /// Says that a collection is under way. Only one is at a time.
    pub(crate) fn begin_collection(&self) -> Collecting<'_> {
        let mut state = self.lock();
        state.collecting = true;
        self.noting.store(true, Ordering::SeqCst);
        Collecting(self)
    }
}

/// A collection; it ends also where it fails.
pub(crate) struct Collecting<'a>(&'a Gate);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.collecting = false;
        state.forget();
        self.0.noting.store(!state.guards.is_empty(), Ordering::SeqCst);
    }
}

/// Keeps from collection what is committed and what is found to be here, while content is added that nothing refers to yet.
#[must_use = "what is added is kept only while the guard lives"]
#[derive(Debug)]
pub struct Guard {
    store: Store,
    epoch: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.store.0.gate.leave(self.epoch);
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
        let mut state = self.store.0.gate.lock();
        let (collecting, epoch) = (state.collecting, state.epoch);
        for digest in &self.digests {
            if collecting {
                // It may have got a name that the mark has missed.
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
    /// Keeps every blob from collection that is committed, or found to be here, while the guard lives. A blob that was seen
    /// before is not kept: look again. Of a document that is found, look at what it refers to as well.
    pub fn guard(&self) -> Guard {
        Guard { store: self.clone(), epoch: self.0.gate.enter() }
    }

    /// Keeps these blobs from collection, as far as they are here when this returns: look after it, not before.
    pub fn hold(&self, digests: Vec<Digest>) -> Hold {
        let mut state = self.0.gate.lock();
        for digest in &digests {
            *state.held.entry(*digest).or_default() += 1;
        }
        drop(state);
        Hold { store: self.clone(), digests }
    }
}
