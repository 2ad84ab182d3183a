//! Progress of a transfer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use content::{Descriptor, Digest, Observer};
use library::{Presence, Requests};
use registry::client::Counter;
use tokio::sync::mpsc::UnboundedSender;

/// Counts bytes and forwards status messages.
#[derive(Debug)]
pub struct Meter {
    completed: AtomicU64,
    total: AtomicU64,
    statuses: UnboundedSender<String>,
    /// Blobs in progress; `None` if progress per blob is not requested.
    blobs: Option<Mutex<Vec<UnderWay>>>,
}

/// Progress of one blob of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobProgress {
    /// The digest of the blob.
    pub digest: Digest,
    /// The name of the layer; empty if it has none.
    pub name: String,
    /// Bytes that are complete.
    pub completed: u64,
    /// Size of the blob in bytes.
    pub total: u64,
}

/// A blob that is being transferred.
#[derive(Debug)]
struct UnderWay {
    digest: Digest,
    name: String,
    total: u64,
    /// Bytes that are complete. The counter of the blob shares this value.
    completed: Arc<AtomicU64>,
    /// The last reported value; `None` before the first report.
    told: Option<u64>,
}

/// Counts the bytes of one blob, for the blob and for the whole transfer.
#[derive(Debug)]
pub(crate) struct BlobCounter {
    meter: Arc<Meter>,
    completed: Arc<AtomicU64>,
}

impl Meter {
    /// Creates a meter without progress per blob. Status messages go to `statuses`, whose receiver
    /// may be dropped.
    pub fn new(statuses: UnboundedSender<String>) -> Self {
        Self { completed: AtomicU64::new(0), total: AtomicU64::new(0), statuses, blobs: None }
    }

    /// Creates a meter that also reports the progress of each blob.
    pub fn of_blobs(statuses: UnboundedSender<String>) -> Self {
        Self { blobs: Some(Mutex::default()), ..Self::new(statuses) }
    }

    /// Reports the beginning of a step.
    pub fn status(&self, status: impl Into<String>) {
        // An error means that the receiver was dropped.
        let _ = self.statuses.send(status.into());
    }

    /// Sets the total number of bytes, and the number of bytes that are present.
    pub(crate) fn expect(&self, total: u64, present: u64) {
        self.completed.store(present, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Returns the number of complete bytes and the total.
    pub fn reading(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.completed.load(Ordering::Relaxed).min(total), total)
    }

    /// Starts to count the transfer of a blob.
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

    /// Returns the blobs that progressed since the last call. A blob that has ended is reported one
    /// last time and then forgotten.
    pub fn blobs_that_moved(&self) -> Vec<BlobProgress> {
        let Some(blobs) = &self.blobs else { return Vec::new() };
        let mut moved = Vec::new();
        blobs.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|blob| {
            // Checked before the value is read: without another owner, the counter cannot change
            // any more.
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

/// A transfer whose result is awaited. Dropping it stops the observer and ends the requests.
#[derive(Debug)]
pub(crate) struct Watched {
    meter: Arc<Meter>,
    presence: Presence,
}

/// Forwards the progress of an import.
#[derive(Debug)]
pub(crate) struct MeterObserver {
    meter: Arc<Meter>,
    requests: Requests,
}

impl Watched {
    pub(crate) fn new(meter: &Arc<Meter>) -> Self {
        Self { meter: meter.clone(), presence: Presence::new() }
    }

    /// The observer for the thread that does the work.
    pub(crate) fn observer(&self) -> MeterObserver {
        MeterObserver { meter: self.meter.clone(), requests: self.presence.requests() }
    }
}

impl MeterObserver {
    /// Runs the requests of the import.
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
        // Several workers report; the last report is not necessarily the furthest.
        self.meter.completed.fetch_max(done, Ordering::Relaxed);
    }

    fn blob(&self, name: &str, blob: &Descriptor) {
        // The digest of the blob is known only at its end.
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
        // The bytes were wrong.
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
