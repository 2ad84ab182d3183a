//! How much of requests may be in memory at a time.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failed;

/// All documents that are being read, in bytes.
const BUDGET: usize = 128 << 20;

/// What all documents that are being read may take together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET)))
    }

    /// Room for a document; waits until there is some.
    pub(crate) async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Failed> {
        let bytes = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
        let permit = self.0.clone().acquire_many_owned(bytes).await;
        permit.map_err(|_| Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon stops"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn documents_wait_for_room() {
        let budget = Budget::new();
        let all = budget.take(BUDGET).await.expect("room");
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(1).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(all);
        waiting.await.expect("a task").expect("room");
    }
}
