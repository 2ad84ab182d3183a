//! By what the daemon tells a runner that computes from one that loops: something is done again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The pulse of the engine. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    beats: AtomicU64,
    works: AtomicBool,
}

impl Pulse {
    /// One more layer was computed, or something else begins.
    pub(crate) fn beat(&self) {
        self.0.works.store(true, Ordering::Relaxed);
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing is to be done now.
    pub(crate) fn rest(&self) {
        self.0.works.store(false, Ordering::Relaxed);
    }

    /// What changes as long as the work goes on; `None` while there is none.
    pub(crate) fn read(&self) -> Option<u64> {
        self.0.works.load(Ordering::Relaxed).then(|| self.0.beats.load(Ordering::Relaxed))
    }
}
