//! How much of requests may be in memory at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failed;

/// All documents that are being read, in bytes.
const BUDGET: usize = 128 << 20;
/// How long a request waits for room, and for more where it has some.
const LONGEST: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_secs(2);

/// What all documents that are being read may take together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET)))
    }

    /// Room for the beginning of a document; waits until there is some.
    ///
    /// # Errors
    /// 503 where there is none.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Room, Failed> {
        acquire(&self.0, bytes, LONGEST).await.map(Room)
    }
}

/// What one document takes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room(OwnedSemaphorePermit);

impl Room {
    /// Room for more of it. Waits for a moment only: all who hold some might wait for each other.
    ///
    /// # Errors
    /// 503 where there is none.
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
