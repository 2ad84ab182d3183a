//! What is at fault where something fails, as far as somebody acts on it.

use std::io::ErrorKind;

use anyhow::Error;
use protocol::FailureKind;

/// Why something failed, where its error says it.
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

/// Something that this build, or the device, does not have: another attempt gives the same.
pub(crate) fn unsupported(error: &Error) -> Error {
    mark(FailureKind::Unsupported, error)
}

/// A device gave no memory. Its drivers have no common error for it: whoever asks for nothing but memory knows.
pub(crate) fn out_of_memory(error: &Error) -> Error {
    mark(FailureKind::OutOfMemory, error)
}

/// What another process said of a failure.
pub(crate) fn of_kind(kind: FailureKind, error: &Error) -> Error {
    mark(kind, error)
}

/// The same failure for somebody else who is told of it.
pub(crate) fn again(error: &Error) -> Error {
    mark(kind(error), error)
}

fn mark(kind: FailureKind, error: &Error) -> Error {
    Marked { kind, reason: format!("{error:#}") }.into()
}

/// What is at fault.
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
        // ENOMEM, as `mmap` gives it.
        let memory = Error::from(std::io::Error::from_raw_os_error(12)).context("cannot map");
        assert_eq!(kind(&memory), FailureKind::OutOfMemory);
        assert_eq!(kind(&out_of_memory(&anyhow!("CUDA")).context("a layer")), FailureKind::OutOfMemory);
        assert_eq!(kind(&unsupported(&anyhow!("no CUDA"))), FailureKind::Unsupported);
        assert_eq!(kind(&anyhow!("out of memory")), FailureKind::Internal, "texts say nothing");
        assert_eq!(format!("{:#}", unsupported(&anyhow!("a").context("b"))), "b: a");
    }
}
