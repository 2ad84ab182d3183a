//! Errors of the files and settings of access control.

use std::io;
use std::path::{Path, PathBuf};

use super::Mode;

/// Reasons why access control cannot be set up, or a line for the file of users cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read or written.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line of the file of users is malformed.
    #[error("line {line} of `{}` is not a user: {reason}", path.display())]
    Users {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1; 0 means the whole file.
        line: usize,
        /// The expected content.
        reason: String,
    },
    /// A line of users that come from no file is malformed.
    #[error("line {line} of the users is not a user: {reason}")]
    UserText {
        /// The number of the line, from 1.
        line: usize,
        /// The expected content.
        reason: String,
    },
    /// The mode needs users, but there is neither a file of users nor an identity provider.
    #[error(
        "mode `{0}` needs users; name an htpasswd file (`lode htpasswd USER` prints its lines) or an identity provider"
    )]
    NeedsUsers(Mode),
    /// The settings of an identity provider are wrong.
    #[error("the identity provider `{issuer}` cannot be used: {reason}")]
    Provider {
        /// The issuer.
        issuer: String,
        /// The wrong setting.
        reason: String,
    },
    /// The name of the service cannot be part of a header.
    #[error(
        "`{0}` cannot name the service: expected 1 to 128 printable ASCII characters without quotes and backslashes"
    )]
    Service(String),
    /// The key file has other content, or other users can read it.
    #[error("`{}` cannot be used as the key of tokens: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The expected content, and the remedy.
        reason: String,
    },
    /// The text cannot be the name of a user.
    #[error("`{0}` cannot be a user's name: expected 1 to 255 bytes without `:` and control characters")]
    UserName(String),
    /// The password cannot be hashed.
    #[error("the password cannot be used: {0}")]
    Password(&'static str),
}

impl AccessError {
    pub(super) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }
}
