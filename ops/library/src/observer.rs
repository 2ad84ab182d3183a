//! The observer of a long operation.

use content::Descriptor;

/// Receives the progress of an operation, and decides whether it continues.
pub trait Observer: Sync {
    /// Reports that a step begins.
    fn status(&self, status: String);
    /// Reports that `done` of `total` bytes are processed.
    fn bytes(&self, done: u64, total: u64);
    /// Reports that a layer is complete, with its name and its blob. The default does nothing, for
    /// observers that only count bytes.
    fn blob(&self, _name: &str, _blob: &Descriptor) {}
    /// Whether the operation should continue.
    fn goes_on(&self) -> bool;
}

/// Fails if the observer has canceled the operation.
///
/// # Errors
/// The operation was canceled.
pub fn ensure_wanted(observer: &dyn Observer) -> anyhow::Result<()> {
    anyhow::ensure!(observer.goes_on(), "{NOBODY}");
    Ok(())
}

/// Error message of a canceled operation.
pub const NOBODY: &str = "canceled: the client has disconnected";

/// An observer that ignores progress and never cancels.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Observer for Unwatched {
    fn status(&self, _status: String) {}

    fn bytes(&self, _done: u64, _total: u64) {}

    fn goes_on(&self) -> bool {
        true
    }
}
