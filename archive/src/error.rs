//! //! Errors of reading and writing archives.

use std::io;

/// Error of reading or writing an archive. The variants tell a failed stream, a damaged archive and
/// a refused archive apart.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing the stream failed.
    #[error("cannot read or write the archive: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a tar archive, or the archive is truncated.
    #[error("the archive is not a readable tar: {reason}, at byte {offset}")]
    Malformed {
        /// Byte offset in the archive at which the error was found.
        offset: u64,
        /// Description of the error.
        reason: String,
    },
    /// The archive is valid, but has a member that is never accepted.
    #[error("the archive has a member that is refused: `{path}`: {reason}")]
    Refused {
        /// Path of the member, truncated to 160 characters.
        path: String,
        /// Reason for the refusal.
        reason: &'static str,
    },
}

impl Error {
    pub(crate) fn refused(path: &str, reason: &'static str) -> Self {
        Self::Refused { path: path.chars().take(160).collect(), reason }
    }
}
