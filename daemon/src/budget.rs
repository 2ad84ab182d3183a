//! A limit on the memory of request bodies that are being read.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failed;

/// Budget of all documents together, in bytes.
const BUDGET: usize = 128 << 20;
/// How long a request waits for its first bytes of budget, and how long (`MOMENT`) for each further
/// part.
const LONGEST: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_secs(2);

/// The memory that all documents being read may take together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET)))
    }

    /// Takes budget for the beginning of a document, waiting until there is some.
    ///
    /// # Errors
    /// 503 if there is none in time.
    pub(crate) async fn take(&self, bytes: usize) -> Result<BudgetPermit, Failed> {
        acquire(&self.0, bytes, LONGEST).await.map(BudgetPermit)
    }
}

/// The budget that one document holds until this is dropped.
#[derive(Debug)]
pub(crate) struct BudgetPermit(OwnedSemaphorePermit);

impl BudgetPermit {
    /// Takes budget for a further part of the document. The wait is short, because all holders of
    /// budget might wait for each other.
    ///
    /// # Errors
    /// 503 if there is none in time.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), Failed> {
        let more = acquire(self.0.semaphore(), bytes, MOMENT).await?;
        self.0.merge(more);
        Ok(())
    }
}

async fn acquire(all: &Arc<Semaphore>, bytes: usize, longest: Duration) -> Result<OwnedSemaphorePermit, Failed> {
    let bytes = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
    let full = || {
        let reason = "too many requests are being read at the moment; try again";
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, reason)
    };
    let permit = tokio::time::timeout(longest, all.clone().acquire_many_owned(bytes)).await;
    permit.map_err(|_| full())?.map_err(|_| full())
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
