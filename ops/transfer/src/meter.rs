//! How far a transfer is, for whoever watches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use content::{Descriptor, Digest};
use library::Observer;
use registry::client::Counter;
use tokio::sync::mpsc::UnboundedSender;

use crate::requests::{Presence, Requests};

/// Counts bytes and passes statuses on.
#[derive(Debug)]
pub struct Meter {
    completed: AtomicU64,
    total: AtomicU64,
    statuses: UnboundedSender<String>,
    /// The blobs under way; `None` where nobody asks for them one by one.
    blobs: Option<Mutex<Vec<UnderWay>>>,
}

/// How far one blob of a transfer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobProgress {
    /// Which it is.
    pub digest: Digest,
    /// The layer's name; empty where it has none.
    pub name: String,
    /// Bytes that are done, of how many.
    pub completed: u64,
    /// Bytes of the whole blob.
    pub total: u64,
}

/// A blob that is being transferred.
#[derive(Debug)]
struct UnderWay {
    digest: Digest,
    name: String,
    total: u64,
    /// Bytes that are done; its counter has it, too.
    completed: Arc<AtomicU64>,
    /// What was last told of it; nothing before the first time.
    told: Option<u64>,
}

/// Counts the bytes of one blob, for itself and for the whole transfer.
#[derive(Debug)]
pub(crate) struct BlobCounter {
    meter: Arc<Meter>,
    completed: Arc<AtomicU64>,
}

impl Meter {
    /// Statuses go to `statuses`; nobody need listen.
    pub fn new(statuses: UnboundedSender<String>) -> Self {
        Self { completed: AtomicU64::new(0), total: AtomicU64::new(0), statuses, blobs: None }
    }

    /// One that says of each blob how far it is, too.
    pub fn of_blobs(statuses: UnboundedSender<String>) -> Self {
        Self { blobs: Some(Mutex::default()), ..Self::new(statuses) }
    }

    /// A step begins.
    pub fn status(&self, status: impl Into<String>) {
        // An error says that nobody listens.
        let _ = self.statuses.send(status.into());
    }

    /// So many bytes are to be there in all, and so many are already.
    pub(crate) fn expect(&self, total: u64, present: u64) {
        self.completed.store(present, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// How many bytes of how many are done.
    pub fn reading(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.completed.load(Ordering::Relaxed).min(total), total)
    }

    /// The transfer of a blob begins.
    pub(crate) fn blob(self: &Arc<Self>, name: &str, blob: &Descriptor) -> BlobCounter {
        BlobCounter { meter: self.clone(), completed: self.begun(name, blob, 0) }
    }

    fn begun(&self, name: &str, blob: &Descriptor, completed: u64) -> Arc<AtomicU64> {
        let completed = Arc::new(AtomicU64::new(completed));
        if let Some(blobs) = &self.blobs {
            blobs.lock().unwrap_or_else(PoisonError::into_inner).push(UnderWay {
                digest: blob.digest,
                name: name.to_owned(),
                total: blob.size,
                completed: completed.clone(),
                told: None,
            });
        }
        completed
    }

    /// The blobs that got further since this was last asked. Those that are at their end are told once more, then forgotten.
    pub fn blobs_that_moved(&self) -> Vec<BlobProgress> {
        let Some(blobs) = &self.blobs else { return Vec::new() };
        let mut moved = Vec::new();
        blobs.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|blob| {
            // Asked before it is read: nothing is counted any more where nobody else has it.
            let ended = Arc::get_mut(&mut blob.completed).is_some();
            moved.extend(blob.moved());
            !ended
        });
        moved
    }
}

impl UnderWay {
    fn moved(&mut self) -> Option<BlobProgress> {
        let completed = self.completed.load(Ordering::Relaxed).min(self.total);
        let before = self.told.replace(completed);
        (before != Some(completed)).then(|| BlobProgress {
            digest: self.digest,
            name: self.name.clone(),
            completed,
            total: self.total,
        })
    }
}

impl Counter for BlobCounter {
    fn add(&self, bytes: u64) {
        self.meter.completed.fetch_add(bytes, Ordering::Relaxed);
        self.completed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        self.meter.completed.fetch_sub(bytes, Ordering::Relaxed);
        self.completed.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A transfer that somebody waits for: when this is dropped, its observer says not to go on, and its requests end.
#[derive(Debug)]
pub(crate) struct Watched {
    meter: Arc<Meter>,
    presence: Presence,
}

/// Passes the progress of an import on.
#[derive(Debug)]
pub(crate) struct MeterObserver {
    meter: Arc<Meter>,
    requests: Requests,
}

impl Watched {
    pub(crate) fn new(meter: &Arc<Meter>) -> Self {
        Self { meter: meter.clone(), presence: Presence::new() }
    }

    /// For the thread that does the work.
    pub(crate) fn observer(&self) -> MeterObserver {
        MeterObserver { meter: self.meter.clone(), requests: self.presence.requests() }
    }
}

impl MeterObserver {
    /// What runs the requests of the import.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }
}

impl Observer for MeterObserver {
    fn status(&self, status: String) {
        self.meter.status(status);
    }

    fn bytes(&self, done: u64, total: u64) {
        self.meter.total.store(total, Ordering::Relaxed);
        // Several workers tell; the last to arrive is not the furthest.
        self.meter.completed.fetch_max(done, Ordering::Relaxed);
    }

    fn blob(&self, name: &str, blob: &Descriptor) {
        // Which blob it becomes is known at its end.
        self.meter.begun(name, blob, blob.size);
    }

    fn goes_on(&self) -> bool {
        self.requests.are_wanted()
    }
}

#[cfg(test)]
mod tests {
    use content::MediaType;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn descriptor(size: u64) -> Descriptor {
        Descriptor { media_type: MediaType::known("a/b"), digest: Digest::of(&size.to_le_bytes()), size }
    }

    #[test]
    fn a_blob_is_told_while_it_moves_and_once_at_its_end() {
        let meter = Arc::new(Meter::of_blobs(unbounded_channel().0));
        meter.expect(10, 0);
        let counter = meter.blob("a.weight", &descriptor(10));
        let told = || meter.blobs_that_moved().into_iter().map(|blob| (blob.name, blob.completed)).collect::<Vec<_>>();
        assert_eq!(told(), [("a.weight".to_owned(), 0)]);
        assert_eq!(told(), []);
        counter.add(8);
        assert_eq!(told(), [("a.weight".to_owned(), 8)]);
        // Its bytes were wrong.
        counter.remove(8);
        assert_eq!(told(), [("a.weight".to_owned(), 0)]);
        counter.add(10);
        drop(counter);
        assert_eq!(told(), [("a.weight".to_owned(), 10)]);
        assert_eq!(told(), []);
        assert_eq!(meter.reading(), (10, 10));
    }

    #[test]
    fn nothing_is_kept_of_blobs_that_nobody_asks_for() {
        let meter = Arc::new(Meter::new(unbounded_channel().0));
        meter.expect(10, 0);
        meter.blob("a.weight", &descriptor(10)).add(10);
        assert_eq!(meter.blobs_that_moved(), []);
        assert_eq!(meter.reading(), (10, 10));
    }
}
