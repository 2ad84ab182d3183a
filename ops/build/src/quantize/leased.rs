//! An import target that keeps the blobs of a failed attempt for the next one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use content::Digest;
use content::operation::Result;
use import::{BlobSink, Target};
use library::Library;
use store::LeaseId;

use crate::target::StoreTarget;

/// How long the blobs of a failed attempt are kept for the next one.
const RESUMABLE: Duration = Duration::from_hours(24);
/// Time between renewals of the lease. A killed process loses at most the work of this time.
const RENEWAL: Duration = Duration::from_secs(10);

/// The store, with a lease on derived blobs.
pub(crate) struct Leased<'a> {
    library: &'a Library,
    target: StoreTarget<'a>,
    lease: LeaseId,
    /// Blobs that earlier attempts left under the lease, including blobs of other types for the
    /// same name.
    earlier: Vec<Digest>,
    /// Time of the last renewal.
    renewed: Mutex<Option<Instant>>,
}

impl<'a> Leased<'a> {
    /// Creates a target for the model that gets the name `key`.
    pub(crate) fn new(library: &'a Library, target: StoreTarget<'a>, key: &str) -> Result<Self> {
        let lease = lease(key)?;
        let earlier = library.leases().get(&lease)?;
        Ok(Self { library, target, lease, earlier, renewed: Mutex::default() })
    }

    /// Ends the lease for the model `key`: it has its name, which keeps its blobs.
    pub(crate) fn end(library: &Library, key: &str) -> Result<()> {
        library.leases().end(&lease(key)?)?;
        Ok(())
    }

    /// Runs `work`. The lease keeps derived blobs for a day, or until [`Leased::end`]. If the work
    /// fails, it also keeps existing blobs that the work reused.
    pub(crate) fn while_working<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        let has_made = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if has_made || done.is_err() {
            self.renew();
        }
        done
    }

    fn renew(&self) {
        let mut made = self.target.resumable();
        if made.is_empty() {
            return;
        }
        made.extend(&self.earlier);
        made.sort_unstable();
        made.dedup();
        if let Err(error) = self.library.leases().set(&self.lease, &made, SystemTime::now() + RESUMABLE) {
            tracing::warn!(
                "cannot renew the lease on derived blobs: {error}; a collection may delete them before the next attempt"
            );
        }
    }
}

fn lease(key: &str) -> Result<LeaseId> {
    Ok(LeaseId::parse(&format!("quantize-{}", Digest::of(key.as_bytes()).short()))?)
}

impl Target for Leased<'_> {
    fn may_have(&self, name: &str, size: u64) -> bool {
        self.target.may_have(name, size)
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, content::Error> {
        self.target.has(digest, size)
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        self.target.begin(size)
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        self.target.remembered(source)
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.target.remember(source, blob);
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.is_none_or(|at| at.elapsed() >= RENEWAL) {
            self.renew();
            *renewed = Some(Instant::now());
        }
    }
}
