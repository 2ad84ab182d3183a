//! Runs a task for a job that blocks. The observer of a job waits for slow clients, which a task
//! must not do; so the task counts, and the job reports the counts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use content::Observer;
use content::operation::{OperationError, Result};
use tokio::runtime::Handle;

/// Time between two reports.
const TICK: Duration = Duration::from_millis(100);

/// The counts of a task.
#[derive(Debug, Default)]
pub(super) struct Relay {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Observer for Relay {
    fn status(&self, _status: String) {}

    fn bytes(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.fetch_max(done, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// Runs a task until it ends, and reports its progress to the observer. If the observer has
/// cancelled, the task learns that and ends by itself.
pub(super) fn run<T, F>(runtime: &Handle, observer: &dyn Observer, work: impl FnOnce(Arc<Relay>) -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let relay = Arc::new(Relay::default());
    let (sender, ended) = channel();
    let task = work(relay.clone());
    drop(runtime.spawn(async move { drop(sender.send(task.await)) }));
    loop {
        let result = ended.recv_timeout(TICK);
        let total = relay.total.load(Ordering::Relaxed);
        if total > 0 {
            observer.bytes(relay.done.load(Ordering::Relaxed), total);
        }
        match result {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => relay.is_cancelled.store(!observer.goes_on(), Ordering::Relaxed),
            Err(RecvTimeoutError::Disconnected) => return Err(OperationError::text("the operation panicked")),
        }
    }
}
