//! The metrics recorder, and the last measurement of the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use library::Library;
use tokio::task::JoinHandle;
use upkeep::StoredBytes;

use super::recorder::Metrics;

/// Minimum age of a measurement before there is another one.
const MEASURE: Duration = Duration::from_mins(1);
/// The minimum age, as a multiple of the time that a measurement takes: it reads every model.
const REST: u32 = 100;
/// How long a scrape waits for a measurement.
const WAIT: Duration = Duration::from_secs(2);

/// A measurement of the whole store.
#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: StoredBytes,
    /// When it is old.
    until: Instant,
}

/// The handle of the recorder and the last measurement. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    kept: Metrics,
    measured: Arc<Mutex<Option<Measured>>>,
    /// Held while a measurement is made.
    measuring: Arc<tokio::sync::Mutex<()>>,
}

impl Counts {
    pub(super) fn new(kept: Metrics) -> Self {
        Self { kept, measured: Arc::default(), measuring: Arc::default() }
    }

    /// The metrics as text.
    pub(crate) fn render(&self) -> String {
        self.kept.render()
    }

    fn last(&self) -> Option<Measured> {
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fresh(&self) -> bool {
        self.last().is_some_and(|measured| Instant::now() < measured.until)
    }

    /// Returns the last measurement. If it is old, a new one begins, for which this waits a little.
    /// `None` if there is none yet.
    pub(super) async fn measured(&self, library: &Library) -> Option<StoredBytes> {
        if !self.is_fresh() {
            // A measurement that takes longer goes on; it stops with the process.
            let _ = tokio::time::timeout(WAIT, self.measure(library.clone())).await;
        }
        self.last().map(|measured| measured.bytes)
    }

    fn measure(&self, library: Library) -> JoinHandle<()> {
        let own = self.clone();
        tokio::spawn(async move {
            // Another scrape may have begun a measurement.
            let Ok(_one) = own.measuring.try_lock() else { return };
            let begin = Instant::now();
            let Ok(bytes) = tokio::task::spawn_blocking(move || upkeep::stored_bytes(&library)).await else { return };
            let until = Instant::now() + begin.elapsed().saturating_mul(REST).max(MEASURE);
            *own.measured.lock().unwrap_or_else(PoisonError::into_inner) = Some(Measured { bytes, until });
        })
    }
}
