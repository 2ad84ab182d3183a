//! Errors of the registry client.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use content::operation::{Classified, ErrorClass, RemoteClass};
use reqwest::StatusCode;

/// Reasons why a request to a registry failed. The variants differ in how the caller can react.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry demands a login, or refuses the one that was used.
    #[error("`{host}` requires a login: {reason}; run `lode login {host}`")]
    Unauthorized {
        /// The registry.
        host: String,
        /// The message of the registry or its token service.
        reason: String,
    },
    /// The registry refuses this user; another account may help.
    #[error(
        "`{host}` denies access to {what}: {message}; request access from its owner, or log in with another account"
    )]
    Denied {
        /// The registry.
        host: String,
        /// The requested object.
        what: String,
        /// The message of the registry.
        message: String,
    },
    /// The object does not exist; another name or source may help.
    #[error("{what} was not found; check the name")]
    NotFound {
        /// The requested object and its host.
        what: String,
    },
    /// The registry refuses for another reason.
    #[error("`{host}` answered {status} to {what}: {message}")]
    Refused {
        /// The registry.
        host: String,
        /// The status of the response.
        status: StatusCode,
        /// The requested object.
        what: String,
        /// The message of the registry.
        message: String,
    },
    /// The rate limit of the registry is exceeded, even after some waiting.
    #[error("`{host}` allows no more requests for now; try again later, or log in for a higher limit")]
    TooManyRequests {
        /// The registry.
        host: String,
    },
    /// There was no connection, or it broke.
    #[error("`{host}` cannot be reached: {}", cause(failure))]
    Unreachable {
        /// The registry, or the host that it redirected to.
        host: String,
        /// The error of the HTTP client, without the URL (which may contain a signature). The
        /// message contains all of its information, so it is not a source.
        failure: reqwest::Error,
    },
    /// No data was sent or received for too long.
    #[error("`{host}` timed out in the middle of a request; try again")]
    Stalled {
        /// The registry, or the host that it redirected to.
        host: String,
    },
    /// A response is longer than its limit.
    #[error("the answer of `{host}` is longer than {limit} bytes, which is the limit for answers of its kind")]
    TooLarge {
        /// The registry.
        host: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// There were too many redirects, or one with a forbidden target.
    #[error("a redirect of `{host}` is refused: {reason}; check the registry's settings")]
    Redirects {
        /// The registry.
        host: String,
        /// The reason why the redirect is not followed.
        reason: String,
    },
    /// The response does not follow the protocol.
    #[error("`{host}` does not follow the registry protocol: {reason}; check the host name and port")]
    Protocol {
        /// The registry.
        host: String,
        /// The expected and the actual response.
        reason: String,
    },
    /// The data to send could not be read.
    #[error("the data to send to `{host}` could not be read: {source}")]
    Payload {
        /// The destination.
        host: String,
        /// The error of the reader.
        source: io::Error,
    },
    /// A setting or a stored login cannot be used; the text has the details.
    #[error("{0}")]
    Settings(String),
    /// A file of settings or logins could not be read or written.
    #[error("{operation} `{}`: {source}", path.display())]
    File {
        /// The operation that failed, as a verb.
        operation: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl From<Error> for content::Error {
    fn from(error: Error) -> Self {
        match error.class() {
            ErrorClass::Remote(class) => Self::Remote { class, source: Box::new(error) },
            _ => Self::Other(Box::new(error)),
        }
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        ErrorClass::Remote(match self {
            Self::NotFound { .. } => RemoteClass::NotFound,
            Self::Unauthorized { .. } | Self::Denied { .. } => RemoteClass::NoAccess,
            Self::Unreachable { .. } => RemoteClass::Unreachable,
            Self::Refused { .. }
            | Self::TooManyRequests { .. }
            | Self::Stalled { .. }
            | Self::TooLarge { .. }
            | Self::Redirects { .. }
            | Self::Protocol { .. }
            | Self::Payload { .. } => RemoteClass::Refused,
            Self::Settings(_) | Self::File { .. } => return ErrorClass::Internal,
        })
    }
}

impl Error {
    /// Whether a retry, or the same request to another source, may help.
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

/// The TLS error of a failed connection, if there is one. A retry would fail in the same way.
pub(super) fn tls_failure(error: &reqwest::Error) -> Option<&rustls::Error> {
    find(error)
}

/// The first error of type `T` in the chain of sources.
pub(super) fn find<T: StdError + 'static>(error: &reqwest::Error) -> Option<&T> {
    let mut next: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(failure) = error.downcast_ref() {
            return Some(failure);
        }
        // The source of an I/O error is the source of its inner error, so the inner error would be
        // skipped.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

/// Why a connection failed, in one sentence. The outer errors only repeat "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    if let Some(failure) = tls_failure(error) {
        let advice = match failure {
            rustls::Error::InvalidMessage(_) => "if it uses plain HTTP, set `plain_http` in its settings",
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
        Some(io::ErrorKind::ConnectionRefused) => "connection refused; check the host and the port".to_owned(),
        _ if error.is_timeout() => "no answer came in time".to_owned(),
        _ => inner.to_string(),
    }
}
