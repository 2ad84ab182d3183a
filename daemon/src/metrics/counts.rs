//! What was counted, and what was last measured of the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use library::Library;

use super::recorder::Metrics;

/// How old the measure of the store may be.
const MEASURE: Duration = Duration::from_mins(1);

/// What the whole store is measured for, and when it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    at: Instant,
    /// Bytes of all blobs.
    pub(super) stored: u64,
    /// Bytes that are not stored because models share blobs.
    pub(super) shared: u64,
}

/// Counts, and what was last measured of the store. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(super) kept: Metrics,
    measured: Arc<Mutex<Option<Measured>>>,
}

impl Counts {
    pub(super) fn new(kept: Metrics) -> Self {
        Self { kept, measured: Arc::default() }
    }

    /// Looks at every model, so it is not done for every scrape.
    pub(super) fn measured(&self, library: &Library) -> Result<Measured> {
        // Nothing that is held half-changed can panic. Scrapes wait for one another: they want the same.
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = measured.filter(|known| known.at.elapsed() < MEASURE) {
            return Ok(known);
        }
        let usage = upkeep::usage(library)?;
        let named: u64 = usage.models.iter().map(|model| model.bytes).sum();
        let others = usage.version_bytes + usage.linked_bytes + usage.unreferenced_bytes;
        let shared = named.saturating_sub(usage.bytes.saturating_sub(others));
        Ok(*measured.insert(Measured { at: Instant::now(), stored: usage.bytes, shared }))
    }
}
