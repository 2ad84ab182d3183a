//! Scheduling of the collections that follow a removal. A small store is collected at once. A
//! collection reads all documents, so in a large store it runs in the background, for a small part
//! of the time.
//!
//! A caller that has made blobs unreferenced sets `due`. Requests during a collection are served by
//! one next collection together. Blobs that a collection kept because they were in use make another
//! collection due, after a pause.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of documents for an immediate collection, which then takes about a tenth of a
/// second.
const AT_ONCE: u64 = 1000;
/// The pause between background collections is this many times as long as the last collection.
const REST: u32 = 10;
/// Minimum pause after a collection that kept blobs in use.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a collection kept unreferenced blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// None that a later collection could delete without a new request.
    Nothing,
    /// Blobs that were in use.
    Used,
}

#[derive(Debug)]
pub(crate) struct Collections {
    /// Whether blobs may have become unreferenced since the last collection began.
    due: AtomicBool,
    /// Number of documents that the last collection read.
    documents: AtomicU64,
    at_once: u64,
    /// Earliest time of the next background collection. Locked while a collection runs.
    rested: Mutex<Option<Instant>>,
}

impl Default for Collections {
    fn default() -> Self {
        Self { due: AtomicBool::new(false), documents: AtomicU64::new(0), at_once: AT_ONCE, rested: Mutex::default() }
    }
}

impl Collections {
    /// Records how many documents a collection has read, including collections that were not
    /// scheduled here.
    pub(crate) fn saw(&self, documents: u64) {
        self.documents.store(documents, Ordering::Relaxed);
    }

    /// Reports that blobs may be unreferenced. They are collected now, or soon in the background.
    pub(crate) fn request(&self, collect: impl FnOnce() -> Left) {
        self.due.store(true, Ordering::SeqCst);
        if self.documents.load(Ordering::Relaxed) <= self.at_once {
            self.run(|_| true, collect);
        }
    }

    /// Runs a due collection if the pause is over.
    pub(crate) fn attend(&self, collect: impl FnOnce() -> Left) {
        let now = Instant::now();
        self.run(|rested| rested.is_none_or(|rested| rested <= now), collect);
    }

    /// Runs a due collection immediately, for a caller that needs free space.
    pub(crate) fn hurry(&self, collect: impl FnOnce() -> Left) {
        self.run(|_| true, collect);
    }

    fn run(&self, may: impl FnOnce(Option<Instant>) -> bool, collect: impl FnOnce() -> Left) {
        let mut rested = self.rested.lock().unwrap_or_else(PoisonError::into_inner);
        if !may(*rested) || !self.due.swap(false, Ordering::SeqCst) {
            return;
        }
        let begin = Instant::now();
        let left = collect();
        let mut rest = begin.elapsed().saturating_mul(REST);
        if left == Left::Used {
            self.due.store(true, Ordering::SeqCst);
            rest = rest.max(PATIENCE);
        }
        *rested = Some(Instant::now() + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_documents_are_collected_at_once_and_many_later() {
        let collections = Collections { at_once: 3, ..Collections::default() };
        let runs = AtomicU64::new(0);
        let count = || {
            runs.fetch_add(1, Ordering::SeqCst);
            Left::Nothing
        };
        let collect = |documents| {
            collections.saw(documents);
            count()
        };
        collections.attend(count);
        assert_eq!(runs.load(Ordering::SeqCst), 0, "nothing is due");
        collections.request(|| collect(3));
        collections.request(|| collect(4));
        assert_eq!(runs.load(Ordering::SeqCst), 2, "both at once");
        collections.request(count);
        assert_eq!(runs.load(Ordering::SeqCst), 2, "there are many now");
        *collections.rested.lock().expect("nobody panicked") = Some(Instant::now() + Duration::from_hours(1));
        collections.attend(count);
        assert_eq!(runs.load(Ordering::SeqCst), 2, "it rests");
        *collections.rested.lock().expect("nobody panicked") = None;
        collections.attend(|| collect(2));
        collections.attend(count);
        assert_eq!(runs.load(Ordering::SeqCst), 3, "once");
        collections.request(count);
        assert_eq!(runs.load(Ordering::SeqCst), 4, "there are few again");
        collections.hurry(count);
        assert_eq!(runs.load(Ordering::SeqCst), 4, "nothing is due");
    }

    #[test]
    fn what_was_used_is_looked_for_again() {
        let (collections, runs) = (Collections::default(), AtomicU64::new(0));
        let leave = |left| {
            runs.fetch_add(1, Ordering::SeqCst);
            left
        };
        collections.request(|| leave(Left::Used));
        collections.attend(|| leave(Left::Nothing));
        assert_eq!(runs.load(Ordering::SeqCst), 1, "it rests");
        collections.hurry(|| leave(Left::Nothing));
        collections.hurry(|| leave(Left::Nothing));
        assert_eq!(runs.load(Ordering::SeqCst), 2, "it was due");
    }

    #[test]
    fn all_who_wait_are_served_by_one() {
        let (collections, runs) = (Collections::default(), AtomicU64::new(0));
        let (began, begin) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (collections, runs) = (&collections, &runs);
            let first = move || {
                runs.fetch_add(1, Ordering::SeqCst);
                began.send(()).expect("somebody listens");
                ended.recv().expect("it is ended");
                Left::Nothing
            };
            let other = || {
                runs.fetch_add(1, Ordering::SeqCst);
                Left::Nothing
            };
            scope.spawn(move || collections.request(first));
            begin.recv().expect("it begins");
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(move || collections.request(other))).collect();
            // Wait until all four requests are registered or served.
            while !collections.due.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            end.send(()).expect("it waits");
            for waiter in waiting {
                waiter.join().expect("no panic");
            }
        });
        assert!(runs.load(Ordering::SeqCst) >= 2, "what was said while one ran is collected by the next");
        assert!(!collections.due.load(Ordering::SeqCst), "nothing is left");
    }
}
