//! Long tasks that block a thread: saving, exporting, creating, checking.
//!
//! The number of blocking threads is limited, and every operation that reads the disk needs one for
//! a moment. So long tasks have a limit of their own. Further tasks wait without a thread.

use std::sync::Arc;

use content::operation::OperationError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::error::Failed;

/// Maximal number of running tasks: enough for a few slow clients, but few of the runtime's 512
/// blocking threads.
const MOST: usize = 64;

/// Runs long tasks. Clones share the limit.
#[derive(Clone, Debug)]
pub(crate) struct LongTasks(Arc<Semaphore>);

/// The permission to start a task.
#[derive(Debug)]
pub(crate) struct Turn(OwnedSemaphorePermit);

impl LongTasks {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }

    /// Waits for a permission. A waiting task holds no resources.
    pub(crate) async fn turn(&self) -> Result<Turn, Failed> {
        let permit = self.0.clone().acquire_owned().await;
        permit.map(Turn).map_err(|_| OperationError::text("the daemon stops").into())
    }
}

impl Turn {
    /// Runs the task on a blocking thread and releases the permission afterwards.
    pub(crate) fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        tokio::task::spawn_blocking(move || {
            let done = work();
            drop(self.0);
            done
        })
    }
}
