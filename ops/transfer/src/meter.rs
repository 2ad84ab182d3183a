//! How far a transfer is, for whoever watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl Meter {
    /// Statuses go to `statuses`; nobody need listen.
    pub fn new(statuses: UnboundedSender<String>) -> Self {
        Self { completed: AtomicU64::new(0), total: AtomicU64::new(0), statuses }
    }

    /// A step begins.
    pub fn status(&self, status: impl Into<String>) {
        // An error says that nobody listens.
        let _ = self.statuses.send(status.into());
    }

    /// So many bytes are to be transferred in all.
    pub(crate) fn expect(&self, total: u64) {
        self.completed.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// How many bytes of how many are done.
    pub fn reading(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.completed.load(Ordering::Relaxed).min(total), total)
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

    fn goes_on(&self) -> bool {
        self.requests.are_wanted()
    }
}

impl Counter for Meter {
    fn add(&self, bytes: u64) {
        self.completed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        self.completed.fetch_sub(bytes, Ordering::Relaxed);
    }
}
