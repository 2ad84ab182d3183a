//! Errors in the format of the Ollama API: a status and `{"error": "text"}`.

use api::ollama::ErrorResponse;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use content::operation::{ErrorClass, OperationError};
use protocol::{FailureKind, GenerateEvent};
use registry::server::access::Refusal;

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Failed {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// Converts the failure to the last event of a generation.
    pub(crate) fn into_event(self) -> GenerateEvent {
        let of_client = self.status.is_client_error();
        let kind = if of_client { FailureKind::BadRequest } else { FailureKind::Internal };
        GenerateEvent::Error { kind, error: self.message }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), "{}", self.message);
        }
        (self.status, Json(ErrorResponse { error: self.message })).into_response()
    }
}

/// Whether a path belongs to the registry.
pub(crate) fn of_registry(path: &str) -> bool {
    path == "/v2" || path.starts_with("/v2/")
}

/// Whether errors of this path have the format of `OpenAI`'s API: that API itself, LM Studio's API,
/// and the API of llama.cpp's server.
fn of_openai(path: &str) -> bool {
    const LLAMA_SERVER: [&str; 7] =
        ["/health", "/props", "/slots", "/completion", "/infill", "/tokenize", "/detokenize"];
    path.starts_with("/v1/") || path.starts_with("/api/v0/") || LLAMA_SERVER.contains(&path)
}

/// Formats a failure for the API that the path belongs to: Ollama's, `OpenAI`'s, Anthropic's, or
/// the registry's.
pub(crate) fn in_dialect(path: &str, failed: Failed) -> Response {
    if of_registry(path) && failed.status == StatusCode::FORBIDDEN {
        return Refusal::Denied { message: failed.message }.into_response();
    }
    if !of_openai(path) {
        return failed.into_response();
    }
    let kind = match failed.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::METHOD_NOT_ALLOWED => "invalid_request_error",
        _ => "api_error",
    };
    let error = serde_json::json!({ "type": kind, "message": failed.message, "param": null, "code": null });
    let document = if path.starts_with("/v1/messages") {
        serde_json::json!({ "type": "error", "error": { "type": kind, "message": failed.message } })
    } else {
        serde_json::json!({ "error": error })
    };
    (failed.status, Json(document)).into_response()
}

/// Advice for a full disk.
const FULL: &str = "the disk is full: `lode du` shows what each model takes, `lode rm` removes one, `lode gc` deletes what no model uses";

impl From<OperationError> for Failed {
    fn from(error: OperationError) -> Self {
        let message = error.with_causes();
        let status = match error.class() {
            ErrorClass::DiskFull => {
                return Self::new(StatusCode::INSUFFICIENT_STORAGE, format!("{message}; {FULL}"));
            }
            ErrorClass::NotFound => StatusCode::NOT_FOUND,
            ErrorClass::Conflict => StatusCode::CONFLICT,
            ErrorClass::ReadOnly => StatusCode::FORBIDDEN,
            ErrorClass::Invalid | ErrorClass::CannotRun => StatusCode::BAD_REQUEST,
            ErrorClass::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
            // As Ollama does.
            ErrorClass::Remote(_) | ErrorClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, message)
    }
}

/// Converts errors of other crates by their class.
macro_rules! by_class {
    ($($error:ty),*) => {
        $(impl From<$error> for Failed {
            fn from(error: $error) -> Self {
                OperationError::from(error).into()
            }
        })*
    };
}

by_class!(content::Error, import::Error, library::Error, manifests::Error, store::Error, std::io::Error);

impl From<scheduler::Error> for Failed {
    fn from(error: scheduler::Error) -> Self {
        use scheduler::Error;
        let status = match &error {
            Error::Refused { kind: protocol::FailureKind::BadRequest, .. } => StatusCode::BAD_REQUEST,
            Error::Busy | Error::Stopped | Error::Pinned { .. } | Error::BackOff { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Refused { kind: protocol::FailureKind::Unsupported, .. } => StatusCode::NOT_IMPLEMENTED,
            Error::Refused { kind: protocol::FailureKind::OutOfMemory | protocol::FailureKind::Internal, .. }
            | Error::OutOfMemory(_)
            | Error::File { .. }
            | Error::TooLarge { .. }
            | Error::Start { .. }
            | Error::Died(_)
            | Error::Timeout { .. }
            | Error::Protocol(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

/// The handler of unknown paths.
pub(crate) async fn not_found(uri: Uri) -> Response {
    let message = format!("no such path: `{}`; `/openapi.json` lists all paths", uri.path());
    in_dialect(uri.path(), Failed::new(StatusCode::NOT_FOUND, message))
}

/// The handler of known paths with a wrong method. The header `Allow` lists the valid methods.
pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("`{}` does not support {method}; the header `Allow` lists the supported methods", uri.path());
    in_dialect(uri.path(), Failed::new(StatusCode::METHOD_NOT_ALLOWED, message))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_a_cause_has_said_is_told_once() {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such file");
        let said = Failed::from(import::Error::io("find", "/nowhere", missing()));
        assert_eq!(
            (said.status, said.message.as_str()),
            (StatusCode::BAD_REQUEST, "cannot find `/nowhere`: no such file")
        );
        let unsaid = Failed::from(OperationError::from(missing()).context("the model cannot be read"));
        assert_eq!(unsaid.message, "the model cannot be read: no such file");
    }

    /// A full disk is told with advice, wherever it was noticed.
    #[test]
    fn a_full_disk_has_its_own_status() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let write = || content::Error::Io { operation: "write", path: "/x".into(), source: full() };
        for failed in [
            Failed::from(full()),
            Failed::from(write()),
            Failed::from(store::Error::from(write())),
            Failed::from(import::Error::Target { name: "layer".to_owned(), source: write() }),
            Failed::from(OperationError::from(write()).context("cannot create the model")),
        ] {
            assert_eq!(failed.status, StatusCode::INSUFFICIENT_STORAGE, "{}", failed.message);
            assert!(
                failed.message.contains("no storage space") && failed.message.ends_with(FULL),
                "{}",
                failed.message
            );
        }
    }
}
