//! The kinds of failures, as far as a caller acts on them.

use std::io::ErrorKind;

use anyhow::Error;
use protocol::FailureKind;

/// An error of a known kind.
#[derive(Debug)]
struct Marked {
    kind: FailureKind,
    reason: String,
}

impl std::fmt::Display for Marked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Marked {}

/// Marks an error as unsupported: this build or the device lacks a feature, and a retry fails
/// again.
pub(crate) fn unsupported(error: &Error) -> Error {
    mark(FailureKind::Unsupported, error)
}

/// Marks an error as a lack of device memory. Drivers have no common error for it, so only code
/// that requests nothing but memory can mark it.
pub(crate) fn out_of_memory(error: &Error) -> Error {
    mark(FailureKind::OutOfMemory, error)
}

/// Marks an error with the kind that another process reported.
pub(crate) fn of_kind(kind: FailureKind, error: &Error) -> Error {
    mark(kind, error)
}

/// Returns a copy of a failure, for another listener.
pub(crate) fn again(error: &Error) -> Error {
    mark(kind(error), error)
}

fn mark(kind: FailureKind, error: &Error) -> Error {
    Marked { kind, reason: format!("{error:#}") }.into()
}

/// Returns the kind of a failure.
pub(crate) fn kind(error: &Error) -> FailureKind {
    for cause in error.chain() {
        if let Some(marked) = cause.downcast_ref::<Marked>() {
            return marked.kind;
        }
        if cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfMemory) {
            return FailureKind::OutOfMemory;
        }
    }
    FailureKind::Internal
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn errors_say_what_is_at_fault() {
        // ENOMEM, as `mmap` returns it.
        let memory = Error::from(std::io::Error::from_raw_os_error(12)).context("cannot map");
        assert_eq!(kind(&memory), FailureKind::OutOfMemory);
        assert_eq!(kind(&out_of_memory(&anyhow!("CUDA")).context("a layer")), FailureKind::OutOfMemory);
        assert_eq!(kind(&unsupported(&anyhow!("no CUDA"))), FailureKind::Unsupported);
        assert_eq!(kind(&anyhow!("out of memory")), FailureKind::Internal, "texts say nothing");
        assert_eq!(format!("{:#}", unsupported(&anyhow!("a").context("b"))), "b: a");
    }
}
