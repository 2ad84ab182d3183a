//! The progress of a job, for any number of clients.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::ollama::Progress;
use tokio::sync::broadcast;

/// Lines that wait for a slow client. A client that is further behind misses lines.
const WAITING: usize = 1024;
/// The time over which a rate is measured.
const MEASURED: Duration = Duration::from_secs(5);
/// The shortest time that gives a rate.
const SHORTEST: Duration = Duration::from_millis(500);

/// A line of progress.
#[derive(Clone, Debug)]
pub(super) struct FeedLine {
    pub(super) progress: Arc<Progress>,
    /// Whether it is about one blob, which only some clients want to know.
    pub(super) is_of_blob: bool,
}

/// Sends lines to all clients, and keeps the current state for clients that connect later.
#[derive(Debug)]
pub(crate) struct Feed {
    sender: broadcast::Sender<FeedLine>,
    current: Mutex<Current>,
}

/// The current progress.
#[derive(Debug, Default)]
struct Current {
    status: String,
    /// The last line with the bytes of the whole job.
    bytes: Option<Arc<Progress>>,
    /// Complete bytes at the times of the last seconds.
    samples: VecDeque<(Instant, u64)>,
}

/// The progress in numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) status: String,
    pub(super) total: u64,
    pub(super) completed: u64,
    /// Bytes per second.
    pub(super) rate: u64,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(WAITING), current: Mutex::default() }
    }
}

impl Feed {
    /// Returns the lines that tell the present state, and the receiver of all later ones.
    pub(super) fn subscribe(&self) -> (Vec<FeedLine>, broadcast::Receiver<FeedLine>) {
        let current = self.current();
        let status = Some(&current.status).filter(|status| !status.is_empty());
        let status = status.map(|status| Arc::new(Progress::status(status.clone())));
        let lines = status.into_iter().chain(current.bytes.clone());
        // The lock is held, so no line is both among these and received.
        let receiver = self.sender.subscribe();
        (lines.map(|progress| FeedLine { progress, is_of_blob: false }).collect(), receiver)
    }

    /// Forgets the progress of an earlier attempt.
    pub(super) fn clear(&self) {
        *self.current() = Current::default();
    }

    /// Tells the beginning of a step.
    pub(crate) fn status(&self, status: String) {
        let mut current = self.current();
        current.status.clone_from(&status);
        self.send(Progress::status(status), false);
    }

    /// Tells the bytes of the whole job.
    pub(crate) fn bytes(&self, status: String, completed: u64, total: u64) {
        let mut current = self.current();
        current.sample(Instant::now(), completed);
        let line = Progress {
            digest: Some("sha256:model".to_owned()),
            total: Some(total),
            completed: Some(completed),
            ..Progress::status(status)
        };
        current.bytes = Some(Arc::new(line.clone()));
        self.send(line, false);
    }

    /// Tells the bytes of one blob.
    pub(crate) fn blob(&self, line: Progress) {
        self.send(line, true);
    }

    pub(super) fn reading(&self) -> Reading {
        let current = self.current();
        let number = |of: fn(&Progress) -> Option<u64>| current.bytes.as_deref().and_then(of).unwrap_or(0);
        Reading {
            status: current.status.clone(),
            total: number(|line| line.total),
            completed: number(|line| line.completed),
            rate: current.rate(Instant::now()),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Every value of the state is valid, so a poisoned lock is safe.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, progress: Progress, is_of_blob: bool) {
        // An error means that no client listens.
        let _ = self.sender.send(FeedLine { progress: Arc::new(progress), is_of_blob });
    }
}

impl Current {
    fn sample(&mut self, now: Instant, completed: u64) {
        // A resumed job begins again with the bytes that are in the store.
        if self.samples.back().is_some_and(|(_, last)| *last > completed) {
            self.samples.clear();
        }
        self.samples.push_back((now, completed));
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) > MEASURED) {
            self.samples.pop_front();
        }
    }

    fn rate(&self, now: Instant) -> u64 {
        let Some(((begin, first), (_, last))) = self.samples.front().zip(self.samples.back()) else { return 0 };
        let elapsed = now.saturating_duration_since(*begin);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        if elapsed < SHORTEST { 0 } else { (last - first).saturating_mul(1000) / millis }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_comes_late_learns_the_present_state() {
        let feed = Feed::default();
        assert!(feed.subscribe().0.is_empty());
        feed.status("pulling manifest".to_owned());
        feed.bytes("pulling model".to_owned(), 5, 10);
        let (now, mut later) = feed.subscribe();
        assert_eq!(
            now.iter().map(|line| line.progress.status.as_str()).collect::<Vec<_>>(),
            ["pulling manifest", "pulling model"]
        );
        assert!(later.try_recv().is_err(), "no line comes twice");
        feed.blob(Progress::status("pulling abc"));
        assert!(later.try_recv().expect("a line").is_of_blob);
        let reading = feed.reading();
        assert_eq!((reading.completed, reading.total), (5, 10));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (mut current, start) = (Current::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, completed) in [(0, 0), (1, 100), (8, 170), (9, 180)] {
            current.sample(at(seconds), completed);
        }
        assert_eq!(current.rate(at(9)), 10, "from second 1 on");
        assert_eq!(current.rate(at(17)), 5, "no bytes came since");
        // It was interrupted, and goes on with fewer bytes.
        current.sample(at(20), 50);
        assert_eq!(current.rate(at(20)), 0);
    }
}
