//! The scheduler's lock, tasks and clock: from the standard library and tokio. With the feature
//! `schedules` they come from `shuttle`, which tests many orders of tasks, and time passes only
//! while the scheduler waits (see `schedules`).

#[cfg(not(feature = "schedules"))]
mod real {
    use std::time::Instant;

    use tokio::runtime::Handle;
    use tokio::task::JoinSet;

    use crate::machine::Moment;

    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
    pub(crate) use tokio::spawn;

    /// A clock; moments count from its creation.
    #[derive(Clone, Debug)]
    pub(crate) struct Clock(Instant);

    impl Clock {
        pub(crate) fn new() -> Self {
            Self(Instant::now())
        }

        pub(crate) fn now(&self) -> Moment {
            self.0.elapsed()
        }

        /// Waits forever if the moment is not representable.
        pub(crate) async fn wait_until(&self, moment: Moment) {
            match self.0.checked_add(moment) {
                Some(moment) => tokio::time::sleep_until(moment.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Tasks on the runtime in which this was created. They may also be started outside of a
    /// runtime.
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

        /// Forgets tasks that have ended.
        pub(crate) fn tidy(&mut self) {
            while self.running.try_join_next().is_some() {}
        }

        /// Takes the running tasks, so that the caller can await them.
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
