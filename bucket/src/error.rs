//! Errors of object storage.

use content::Digest;
use content::operation::{Classified, ErrorClass, RemoteClass};

/// Errors of a bucket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no storage.
    #[error(
        "`{url}` is not a storage: {reason}; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
         memory://"
    )]
    Location {
        /// The URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The storage lacks a property that the registry needs.
    #[error("the storage `{storage}` cannot hold a registry: {reason}")]
    Unusable {
        /// The URL of the storage.
        storage: String,
        /// The missing property.
        reason: String,
    },
    /// A request failed, after the retries that its kind permits.
    #[error("cannot {operation} `{key}` in the storage: {}", kind(source))]
    Request {
        /// The operation, as a verb.
        operation: &'static str,
        /// The key of the object.
        key: String,
        /// The failure.
        source: object_store::Error,
    },
    /// An object is not one that Lode writes.
    #[error("`{key}` in the storage cannot be read: {reason}; another program may have written it")]
    Document {
        /// The key of the object.
        key: String,
        /// The reason.
        reason: String,
    },
    /// A collection removed a blob while a client sent it.
    #[error("blob `{blob}` was removed by a collection while it was sent; send it again")]
    Collected {
        /// The digest of the blob.
        blob: Digest,
    },
    /// Other writers changed the object at every attempt to change it.
    #[error("`{key}` in the storage is changed by many requests at once; retry later")]
    Contended {
        /// The key of the object.
        key: String,
    },
}

impl Error {
    pub(crate) fn request(operation: &'static str, key: &str, source: object_store::Error) -> Self {
        Self::Request { operation, key: key.to_owned(), source }
    }

    /// Whether an object does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Request { source: object_store::Error::NotFound { .. }, .. })
    }

    fn remote_class(&self) -> RemoteClass {
        use object_store::Error as Source;
        match self {
            Self::Request { source, .. } => match source {
                Source::NotFound { .. } => RemoteClass::NotFound,
                Source::PermissionDenied { .. } | Source::Unauthenticated { .. } => RemoteClass::NoAccess,
                // A request that failed after all of its retries.
                Source::Generic { .. } => RemoteClass::Unreachable,
                _ => RemoteClass::Refused,
            },
            _ => RemoteClass::Refused,
        }
    }
}

/// The failure in words for clients. The source, which may name internal addresses, is for the log.
fn kind(source: &object_store::Error) -> &'static str {
    use object_store::Error as Source;
    match source {
        Source::NotFound { .. } => "it does not exist, perhaps like the bucket itself",
        Source::PermissionDenied { .. } | Source::Unauthenticated { .. } => "the storage refuses the credentials",
        Source::Generic { .. } => "the storage fails or does not answer",
        _ => "the storage refuses the request",
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Location { .. } | Self::Unusable { .. } => ErrorClass::Invalid,
            Self::Collected { .. } | Self::Contended { .. } => ErrorClass::Conflict,
            Self::Request { .. } => ErrorClass::Remote(self.remote_class()),
            Self::Document { .. } => ErrorClass::Internal,
        }
    }
}

impl From<Error> for content::Error {
    fn from(error: Error) -> Self {
        match error.class() {
            ErrorClass::Remote(class) => Self::Remote { class, source: Box::new(error) },
            // The client repeats the request.
            ErrorClass::Conflict => Self::Remote { class: RemoteClass::Unreachable, source: Box::new(error) },
            _ => Self::Other(Box::new(error)),
        }
    }
}
