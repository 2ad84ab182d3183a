//! What can go wrong between us and a registry.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use reqwest::StatusCode;

/// Why a registry did not do what was asked. Variants by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry does not know us, or not well enough; somebody must log in.
    #[error("`{host}` does not let us in: {reason}; run `lode login {host}`")]
    Unauthorized {
        /// The registry.
        host: String,
        /// What it or its token service said.
        reason: String,
    },
    /// The registry knows us and says no; another account may help.
    #[error("`{host}` denies {what}: {message}; ask its owner for access, or log in as somebody else")]
    Denied {
        /// The registry.
        host: String,
        /// What was asked for.
        what: String,
        /// What it said.
        message: String,
    },
    /// It is not there; another name or source may help.
    #[error("{what} was not found; check the name")]
    NotFound {
        /// What was asked for, and where.
        what: String,
    },
    /// The registry refuses for a reason of its own.
    #[error("`{host}` answered {status} to {what}: {message}")]
    Refused {
        /// The registry.
        host: String,
        /// The answer's status.
        status: StatusCode,
        /// What was asked for.
        what: String,
        /// What it said.
        message: String,
    },
    /// The registry asked us to slow down, even after some waiting.
    #[error("`{host}` allows no more requests for now; try again later, or log in for a higher limit")]
    TooManyRequests {
        /// The registry.
        host: String,
    },
    /// No connection, or it broke.
    #[error("`{host}` cannot be reached: {}", cause(failure))]
    Unreachable {
        /// The registry, or where it sent us.
        host: String,
        /// What the HTTP client said, without the URL (which may hold a signature). The message says all of it that tells anything, so
        /// it is no source.
        failure: reqwest::Error,
    },
    /// Connected, and then nothing came or went for too long.
    #[error("`{host}` went silent in the middle of a request; try again")]
    Stalled {
        /// The registry, or where it sent us.
        host: String,
    },
    /// An answer is longer than any sensible one.
    #[error("the answer of `{host}` is longer than {limit} bytes, which is the limit for answers of its kind")]
    TooLarge {
        /// The registry.
        host: String,
        /// What it may have, in bytes.
        limit: usize,
    },
    /// Redirects without end, or to where we do not go.
    #[error("`{host}` sends us elsewhere, but {reason}; check the registry's configuration")]
    Redirects {
        /// The registry.
        host: String,
        /// Why we do not follow.
        reason: String,
    },
    /// The registry's answer makes no sense.
    #[error("`{host}` does not speak as a registry does: {reason}; check the host's name and port")]
    Protocol {
        /// The registry.
        host: String,
        /// What was expected and found.
        reason: String,
    },
    /// What was to be sent could not be read.
    #[error("the data to send to `{host}` could not be read: {source}")]
    Payload {
        /// Where it was to go.
        host: String,
        /// What the reader said.
        source: io::Error,
    },
    /// A setting or a stored login cannot be used; the text says which and why.
    #[error("{0}")]
    Settings(String),
    /// A file of settings or logins could not be read or written.
    #[error("{operation} `{}`: {source}", path.display())]
    File {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Whether another attempt, or the same request to another source, may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { failure, .. } => tls_failure(failure).is_none(),
            Self::Stalled { .. } | Self::TooManyRequests { .. } => true,
            Self::Refused { status, .. } => status.is_server_error() || *status == StatusCode::REQUEST_TIMEOUT,
            Self::Unauthorized { .. }
            | Self::Denied { .. }
            | Self::NotFound { .. }
            | Self::TooLarge { .. }
            | Self::Redirects { .. }
            | Self::Protocol { .. }
            | Self::Payload { .. }
            | Self::Settings(_)
            | Self::File { .. } => false,
        }
    }

    pub(super) fn unauthorized(host: &str, reason: impl Into<String>) -> Self {
        Self::Unauthorized { host: host.to_owned(), reason: reason.into() }
    }

    pub(super) fn unreachable(host: String, source: reqwest::Error) -> Self {
        Self::Unreachable { host, failure: source.without_url() }
    }
}

/// What is wrong with a connection's TLS, where that is what is wrong. It will be wrong the next time too.
pub(super) fn tls_failure(error: &reqwest::Error) -> Option<&rustls::Error> {
    find(error)
}

/// The first error of a kind among the reasons of an error.
pub(super) fn find<T: StdError + 'static>(error: &reqwest::Error) -> Option<&T> {
    let mut next: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(failure) = error.downcast_ref() {
            return Some(failure);
        }
        // The source of an I/O error is that of what it wraps: what it wraps itself would be passed over.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

/// Why a connection failed, in one sentence: the outer reasons say "error sending request" in several ways.
pub fn cause(error: &reqwest::Error) -> String {
    if let Some(failure) = tls_failure(error) {
        let advice = match failure {
            rustls::Error::InvalidMessage(_) => "if it speaks plain HTTP, say so in its settings",
            _ => "if it has a certificate authority of its own, name its file in the registry's settings",
        };
        return format!("{failure}; {advice}");
    }
    let mut inner: &dyn StdError = error;
    let mut is_name = false;
    while let Some(source) = inner.source() {
        is_name |= source.to_string().starts_with("dns error");
        inner = source;
    }
    if is_name {
        return "no address is known for that name; check its spelling, and the network".to_owned();
    }
    match find::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "nobody listens there; check the host and the port".to_owned(),
        _ if error.is_timeout() => "no answer came in time".to_owned(),
        _ => inner.to_string(),
    }
}
