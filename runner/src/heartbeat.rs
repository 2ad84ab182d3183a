//! Heartbeat: a counter that the runner advances while it makes progress. The daemon kills a runner
//! whose counter stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The heartbeat of the engine. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heartbeat(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    beats: AtomicU64,
    works: AtomicBool,
}

impl Heartbeat {
    /// Advances the counter: a layer was computed, or other work begins.
    pub(crate) fn beat(&self) {
        self.0.works.store(true, Ordering::Relaxed);
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that there is no work now.
    pub(crate) fn rest(&self) {
        self.0.works.store(false, Ordering::Relaxed);
    }

    /// Returns the counter, which changes as long as work makes progress; `None` if there is no
    /// work.
    pub(crate) fn read(&self) -> Option<u64> {
        self.0.works.load(Ordering::Relaxed).then(|| self.0.beats.load(Ordering::Relaxed))
    }
}
