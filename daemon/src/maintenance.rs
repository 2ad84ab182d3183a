//! Maintenance of the store: `/api/lode/…`, `/api/save`, `/api/load` and `/api/export`.

pub(crate) mod archive;
pub(crate) mod compare;
pub(crate) mod export;
pub(crate) mod keep;
pub(crate) mod plan;
pub(crate) mod registry;
pub(crate) mod relations;
mod relay;
pub(crate) mod tier;
pub(crate) mod upkeep;
pub(crate) mod values;
pub(crate) mod versions;

use std::sync::atomic::{AtomicU64, Ordering};

use api::lode::Step;
use api::ollama::ErrorResponse;
use axum::response::Response;
use content::operation::{OperationError, Result};
use serde::Serialize;

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::stream::{Lines, lines};
use content::Observer;
use library::Library;

/// Number of bytes between two progress lines.
const STEP: u64 = 64 << 20;

/// Runs a long operation and streams its progress as lines. The operation stops when the client
/// disconnects.
async fn stepwise<T: Serialize + 'static>(
    daemon: &Daemon,
    doing: &'static str,
    work: impl FnOnce(&Library, &dyn Observer) -> Result<T> + Send + 'static,
) -> Result<Response, Failed> {
    let turn = daemon.long_tasks.turn().await?;
    let (lines, response) = lines();
    let library = daemon.library.clone();
    // The job ends by itself, at the latest when the connection closes, through `goes_on`.
    drop(turn.run(move || {
        let steps = Steps { lines, doing, told: AtomicU64::new(0) };
        let work = std::panic::AssertUnwindSafe(|| work(&library, &steps));
        let result =
            std::panic::catch_unwind(work).unwrap_or_else(|_| Err(OperationError::text("the operation panicked")));
        match result {
            Ok(report) => {
                let status = "success".to_owned();
                steps.lines.send_blocking(&Step { status, total: None, completed: None, report: Some(report) })
            }
            Err(error) => steps.lines.send_blocking(&ErrorResponse { error: Failed::from(error).message }),
        };
    }));
    Ok(response)
}

/// Runs a job that reads all models or a large part of one. The number of such jobs is limited,
/// because other requests need blocking threads too.
async fn in_turn<T: Send + 'static>(
    daemon: &Daemon,
    work: impl FnOnce(&Library) -> Result<T> + Send + 'static,
) -> Result<T, Failed> {
    let library = daemon.library.clone();
    let done = daemon.readouts.turn().await?.run(move || work(&library)).await;
    Ok(done.map_err(|e| OperationError::text(format!("the operation ended unexpectedly: {e}")))??)
}

/// Reports progress to a client.
struct Steps {
    lines: Lines,
    doing: &'static str,
    /// Number of bytes that was last reported.
    told: AtomicU64,
}

impl Steps {
    fn step(&self, status: String, total: Option<u64>, completed: Option<u64>) {
        self.lines.send_blocking(&Step::<()> { status, total, completed, report: None });
    }
}

impl Observer for Steps {
    fn status(&self, status: String) {
        self.step(status, None, None);
    }

    fn bytes(&self, done: u64, total: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let due = done == total || done >= told + STEP;
        // Several threads call this; only one of them sends the line.
        if due && self.told.compare_exchange(told, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.step(self.doing.to_owned(), Some(total), Some(done));
        }
    }

    fn goes_on(&self) -> bool {
        self.lines.is_open()
    }
}
