//! Why an archive cannot be read or written.

use std::io;

/// What went wrong. Variants by whose fault it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream failed.
    #[error("cannot read or write the archive: {0}")]
    Io(#[from] io::Error),
    /// It is not a tar, or was cut.
    #[error("the archive is not a readable tar: {reason}, at byte {offset}")]
    Malformed {
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// It is a tar, with something in it that is never wanted.
    #[error("the archive has a member that is refused: `{path}`: {reason}")]
    Refused {
        /// The member's path, cut where it is long.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Error {
    pub(crate) fn refused(path: &str, reason: &'static str) -> Self {
        Self::Refused { path: path.chars().take(160).collect(), reason }
    }
}
