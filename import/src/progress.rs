//! The progress of an import or a quantization.

use std::sync::atomic::{AtomicU64, Ordering};

use content::{Descriptor, Observer};

use crate::Error;

/// Adds up the progress of several workers for an observer.
pub struct ImportProgress<'a> {
    observer: &'a dyn Observer,
    total: u64,
    done: AtomicU64,
}

impl<'a> ImportProgress<'a> {
    /// Creates a counter for an operation on `total` bytes of blobs. Reports nothing yet.
    pub fn new(observer: &'a dyn Observer, total: u64) -> Self {
        Self { observer, total, done: AtomicU64::new(0) }
    }

    /// Counts bytes that were written, or need not be written. Reports at most `total`.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the observer does not want the operation to continue.
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), Error> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.observer.bytes(done.min(self.total), self.total);
        self.check()
    }

    /// Reports a complete layer.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the observer does not want the operation to continue.
    pub(crate) fn complete(&self, name: &str, blob: &Descriptor) -> Result<(), Error> {
        self.observer.blob(name, blob);
        self.check()
    }

    /// Fails with [`Error::Cancelled`] if the observer has ended the operation.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.observer.goes_on() { Ok(()) } else { Err(Error::Cancelled) }
    }
}
