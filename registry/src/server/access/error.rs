//! What can be wrong with the files and settings that say who may do what.

use std::io;
use std::path::{Path, PathBuf};

use super::Mode;

/// Why access cannot be set up, or a line for the file of users cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read or written.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file of users has a line that is none.
    #[error("line {line} of `{}` is not a user: {reason}", path.display())]
    Users {
        /// The file.
        path: PathBuf,
        /// Counted from 1; 0 is the file as a whole.
        line: usize,
        /// What was expected.
        reason: String,
    },
    /// The mode needs users, and none were given.
    #[error("mode `{0}` needs users; name an htpasswd file (`lode htpasswd USER` prints its lines)")]
    NeedsUsers(Mode),
    /// The name of the service cannot stand in a header.
    #[error(
        "`{0}` cannot name the service: expected 1 to 128 printable ASCII characters without quotes and backslashes"
    )]
    Service(String),
    /// The file of the key holds something else, or everybody may read it.
    #[error("`{}` cannot be used as the key of tokens: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What was expected, and what to do.
        reason: String,
    },
    /// Nobody can be called that.
    #[error("`{0}` cannot be a user's name: expected 1 to 255 bytes without `:` and control characters")]
    UserName(String),
    /// The password cannot be hashed as it is.
    #[error("the password cannot be used: {0}")]
    Password(&'static str),
}

impl AccessError {
    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }
}
