//! The lock, tasks and time of the scheduler: the standard library's and tokio's. With the feature `schedules` they are `shuttle`'s, which
//! tries one order of the tasks after the other, and time is what the scheduler waits for (`schedules`).

#[cfg(not(feature = "schedules"))]
mod real {
    use std::time::Instant;

    use tokio::runtime::Handle;
    use tokio::task::JoinSet;

    use crate::machine::Moment;

    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
    pub(crate) use tokio::spawn;

    /// Moments are counted from when it was made.
    #[derive(Clone, Debug)]
    pub(crate) struct Clock(Instant);

    impl Clock {
        pub(crate) fn new() -> Self {
            Self(Instant::now())
        }

        pub(crate) fn now(&self) -> Moment {
            self.0.elapsed()
        }

        /// Waits for ever where there is no such moment.
        pub(crate) async fn wait_until(&self, moment: Moment) {
            match self.0.checked_add(moment) {
                Some(moment) => tokio::time::sleep_until(moment.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Tasks on the runtime that this was made in; they may be begun where there is none.
    #[derive(Debug)]
    pub(crate) struct Tasks {
        running: JoinSet<()>,
        runtime: Handle,
    }

    impl Tasks {
        pub(crate) fn new() -> Self {
            Self { running: JoinSet::new(), runtime: Handle::current() }
        }

        pub(crate) fn begin(&mut self, life: impl Future<Output = ()> + Send + 'static) {
            self.running.spawn_on(life, &self.runtime);
        }

        /// Forgets those that have ended.
        pub(crate) fn tidy(&mut self) {
            while self.running.try_join_next().is_some() {}
        }

        /// Those that run, to be waited for.
        pub(crate) fn take(&mut self) -> Self {
            Self { running: std::mem::take(&mut self.running), runtime: self.runtime.clone() }
        }

        pub(crate) async fn ended(mut self) {
            while self.running.join_next().await.is_some() {}
        }
    }
}

#[cfg(not(feature = "schedules"))]
pub(crate) use real::{Clock, Mutex, MutexGuard, PoisonError, Tasks, spawn};

#[cfg(feature = "schedules")]
pub(crate) use {
    crate::schedules::{Clock, Tasks},
    shuttle::future::spawn,
    shuttle::sync::{Mutex, MutexGuard, PoisonError},
};
