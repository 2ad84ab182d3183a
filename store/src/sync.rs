//! The locks and atomics of the store: the standard library's. With the feature `schedules` they
//! are `shuttle`'s, which runs tests under many orders of threads (`schedules`).

#[cfg(not(feature = "schedules"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};

#[cfg(feature = "schedules")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};

/// Marks a point between two system calls at which another thread may run.
pub(crate) fn step() {
    #[cfg(feature = "schedules")]
    shuttle::thread::yield_now();
}
