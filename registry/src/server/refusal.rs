//! Error responses: a status, a code of the specification and a message.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use content::Error;
use content::operation::RemoteClass;

use crate::ErrorCode;
use crate::code::ErrorBody;

/// An error response.
#[derive(Debug)]
pub struct ErrorReply {
    status: StatusCode,
    code: ErrorCode,
    body: ErrorBody,
    headers: HeaderMap,
}

impl ErrorReply {
    /// Uses the status that the specification assigns to the code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::with_status(status(code), code, message)
    }

    /// Uses another status.
    pub fn with_status(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status, code, body: ErrorBody::new(code, message), headers: HeaderMap::new() }
    }

    /// Adds a header to the response.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Adds details for programs.
    pub fn detail(mut self, detail: &serde_json::Value) -> Self {
        for entry in &mut self.body.errors {
            entry.detail = Some(detail.clone());
        }
        self
    }
}

fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::BlobUnknown | ErrorCode::BlobUploadUnknown | ErrorCode::ManifestUnknown | ErrorCode::NameUnknown => {
            StatusCode::NOT_FOUND
        }
        ErrorCode::BlobUploadInvalid
        | ErrorCode::DigestInvalid
        | ErrorCode::ManifestBlobUnknown
        | ErrorCode::ManifestInvalid
        | ErrorCode::NameInvalid
        | ErrorCode::SizeInvalid => StatusCode::BAD_REQUEST,
        ErrorCode::Denied => StatusCode::FORBIDDEN,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Unsupported => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
    }
}

impl From<Error> for ErrorReply {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let full = error.is_full();
        match error {
            Error::BlobNotFound(_) | Error::TagNotFound(_) => Self::new(ErrorCode::BlobUnknown, message),
            Error::WrongDigest { .. } => Self::new(ErrorCode::DigestInvalid, message),
            Error::WrongSize { .. } => Self::new(ErrorCode::SizeInvalid, message),
            Error::TooDeep { .. } => Self::new(ErrorCode::ManifestInvalid, message),
            Error::BadName { .. } => Self::new(ErrorCode::NameInvalid, message),
            Error::ReadOnly { .. } => Self::new(ErrorCode::Denied, message),
            Error::TagExists { .. } => Self::with_status(StatusCode::CONFLICT, ErrorCode::Denied, message),
            Error::Busy(_) => Self::with_status(StatusCode::CONFLICT, ErrorCode::BlobUploadInvalid, message),
            Error::Io { .. } if full => Self::with_status(StatusCode::INSUFFICIENT_STORAGE, ErrorCode::Denied, message),
            Error::Remote { class, source } => {
                tracing::warn!("{}", content::text::error_with_causes(source.as_ref()));
                remote(class, message)
            }
            Error::Io { .. } | Error::Other(_) => {
                tracing::warn!("{message}");
                Self::with_status(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Unsupported, message)
            }
        }
    }
}

/// The response for a failure of the storage or of an upstream. Clients repeat a request that was
/// refused with 503.
fn remote(class: RemoteClass, message: String) -> ErrorReply {
    match class {
        RemoteClass::Unreachable => {
            let reply = ErrorReply::with_status(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unsupported, message);
            reply.header(header::RETRY_AFTER, HeaderValue::from_static("5"))
        }
        RemoteClass::NotFound | RemoteClass::NoAccess | RemoteClass::Refused => {
            ErrorReply::with_status(StatusCode::BAD_GATEWAY, ErrorCode::Unsupported, message)
        }
    }
}

impl IntoResponse for ErrorReply {
    fn into_response(self) -> Response {
        // The journal reads the code.
        (self.status, self.headers, Extension(self.code), Json(self.body)).into_response()
    }
}
