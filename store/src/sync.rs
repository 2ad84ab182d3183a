//! The locks and atomics of the store: the standard library's. With the feature `schedules` they are `shuttle`'s, which tries one
//! order of the threads after the other (`schedules`).

#[cfg(not(feature = "schedules"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};

#[cfg(feature = "schedules")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};

/// Where another thread may come in between two calls of the system.
pub(crate) fn step() {
    #[cfg(feature = "schedules")]
    shuttle::thread::yield_now();
}
