//! Locks, tasks and timeouts of uploads: the standard library's and tokio's. With the feature
//! `schedules` they are `shuttle`'s, which runs tests under many orders of tasks (`schedules`), and
//! timeouts never expire.

#[cfg(not(feature = "schedules"))]
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(not(feature = "schedules"))]
pub(super) use tokio::{spawn, time::timeout};

#[cfg(feature = "schedules")]
pub(super) use shuttle::{
    future::spawn,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[cfg(feature = "schedules")]
pub(super) async fn timeout<T>(_: std::time::Duration, work: impl Future<Output = T>) -> Result<T, std::io::Error> {
    Ok(work.await)
}

/// Returns the result of a task.
pub(super) async fn finished<T, E: std::error::Error + Send + Sync + 'static>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, content::Error> {
    work.await.map_err(|e| content::Error::Other(Box::new(e)))
}
