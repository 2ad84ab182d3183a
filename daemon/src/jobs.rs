//! Work that takes long and blocks a thread: saving, exporting, creating, checking.
//!
//! There are only so many threads that may block, and everything that reads the disk needs one for a moment. So long work has a
//! share of them of its own: what does not fit into it waits, and waits without a thread.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::error::Failed;

/// How many go on at a time: enough for a few slow clients, and few of the threads that the runtime has for what blocks (512).
const MOST: usize = 64;

/// Runs long work. Clones share the threads.
#[derive(Clone, Debug)]
pub(crate) struct Jobs(Arc<Semaphore>);

/// The right to begin.
#[derive(Debug)]
pub(crate) struct Turn(OwnedSemaphorePermit);

impl Jobs {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }

    /// Waits for a turn. Who waits holds nothing.
    pub(crate) async fn turn(&self) -> Result<Turn, Failed> {
        let permit = self.0.clone().acquire_owned().await;
        permit.map(Turn).map_err(|_| anyhow::anyhow!("the daemon stops").into())
    }
}

impl Turn {
    /// Does the work on a thread of its own; the turn ends with it.
    pub(crate) fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        tokio::task::spawn_blocking(move || {
            let done = work();
            drop(self.0);
            done
        })
    }
}
