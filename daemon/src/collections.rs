//! A collection of the store that runs once leases have ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use library::Library;
use tokio::time::Instant;

/// How much later than a lease's end its blobs are collected: leases end by the clock of the system.
const MARGIN: Duration = Duration::from_secs(2);

/// The timer of such collections: at most one is waited for at a time. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collections {
    /// When the last collection that was asked for is due; `None` while none is.
    due: Arc<Mutex<Option<Instant>>>,
}

impl Collections {
    /// Schedules a collection for when leases of this duration, set now, have ended. One that is waited for already stays, and this
    /// one follows it.
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
        // It ends by itself, or with the daemon.
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

    /// The next collection after the one at this time; after `None`, the next call of `after` starts the timer anew.
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
