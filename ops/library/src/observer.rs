//! Cancellation of operations whose client has disconnected, or whose job was stopped.

use content::Observer;

/// Fails if the observer has canceled the operation.
///
/// # Errors
/// The operation was canceled.
pub fn ensure_wanted(observer: &dyn Observer) -> content::operation::Result<()> {
    content::ensure!(observer.goes_on(), "{NOBODY}");
    Ok(())
}

/// Error message of a canceled operation.
pub const NOBODY: &str = "canceled: the client has disconnected, or the job was stopped";
