//! The metrics recorder, and the last measurement of the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use content::operation::Result;
use library::Library;

use super::recorder::Metrics;

/// Maximal age of the measurement.
const MEASURE: Duration = Duration::from_mins(1);

/// A measurement of the whole store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    at: Instant,
    /// Bytes of all blobs.
    pub(super) stored: u64,
    /// Bytes that are saved because models share blobs.
    pub(super) shared: u64,
}

/// The handle of the recorder and the last measurement. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    kept: Metrics,
    measured: Arc<Mutex<Option<Measured>>>,
}

impl Counts {
    pub(super) fn new(kept: Metrics) -> Self {
        Self { kept, measured: Arc::default() }
    }

    /// The metrics as text.
    pub(crate) fn render(&self) -> String {
        self.kept.render()
    }

    /// Returns a recent measurement. A new one reads every model, so it is not made for every
    /// scrape.
    pub(super) fn measured(&self, library: &Library) -> Result<Measured> {
        // No panic can leave the state half-changed. Scrapes wait for each other, because they need
        // the same result.
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
