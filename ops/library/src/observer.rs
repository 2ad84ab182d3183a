//! Who is told how a long operation goes.

use content::Descriptor;

/// Who is told how it goes, and whether to go on.
pub trait Observer: Sync {
    /// A step begins.
    fn status(&self, status: String);
    /// That many bytes of so many are done.
    fn bytes(&self, done: u64, total: u64);
    /// A layer is complete: its name and its blob. Who counts bytes alone need not listen.
    fn blob(&self, _name: &str, _blob: &Descriptor) {}
    /// Whether to go on.
    fn goes_on(&self) -> bool;
}

/// Fails where nobody waits any more.
///
/// # Errors
/// Says so.
pub fn ensure_wanted(observer: &dyn Observer) -> anyhow::Result<()> {
    anyhow::ensure!(observer.goes_on(), "{NOBODY}");
    Ok(())
}

/// Why something ends that nobody waits for.
pub const NOBODY: &str = "stopped: nobody waits for the answer any more";

/// For what nobody waits for step by step.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Observer for Unwatched {
    fn status(&self, _status: String) {}

    fn bytes(&self, _done: u64, _total: u64) {}

    fn goes_on(&self) -> bool {
        true
    }
}
