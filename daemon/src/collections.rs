//! Garbage collections of the store that run after leases have expired.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use library::Library;
use tokio::time::Instant;

/// How much later than a lease's end its blobs are collected, since leases end by the system clock.
const MARGIN: Duration = Duration::from_secs(2);

/// The timer of such collections; at most one timer task runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collections {
    /// When the last requested collection is due; `None` if there is none.
    due: Arc<Mutex<Option<Instant>>>,
}

impl Collections {
    /// Schedules a collection for the time when leases of this duration, set now, have expired. A
    /// collection that is already scheduled still runs, and this one follows it.
    pub(crate) fn after(&self, time: Duration, library: &Library) {
        let at = Instant::now() + time + MARGIN;
        let mut due = self.lock();
        let is_waiting = due.is_some();
        *due = (*due).max(Some(at));
        drop(due);
        if is_waiting {
            return;
        }
        let (collections, library) = (self.clone(), library.clone());
        // The task ends by itself, or with the daemon.
        tokio::spawn(async move {
            let mut next = Some(at);
            while let Some(at) = next {
                tokio::time::sleep_until(at).await;
                let library = library.clone();
                drop(tokio::task::spawn_blocking(move || library.collect()).await);
                next = collections.due_after(at);
            }
        });
    }

    /// Returns the next collection after the one at `at`. After `None`, the next call of `after`
    /// starts a new timer.
    fn due_after(&self, at: Instant) -> Option<Instant> {
        let mut due = self.lock();
        *due = due.filter(|due| *due > at);
        *due
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_began_meanwhile_has_its_collection() {
        let (collections, begin) = (Collections::default(), Instant::now());
        let later = begin + Duration::from_secs(1);
        *collections.lock() = Some(later);
        assert_eq!(collections.due_after(begin), Some(later));
        assert_eq!(collections.due_after(later), None);
        assert_eq!(*collections.lock(), None);
    }
}
