//! Errors in the format of the Ollama API: a status and `{"error": "text"}`.

use std::io::{self, ErrorKind};

use api::ollama::ErrorResponse;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use content::text::error_with_causes;
use protocol::{FailureKind, GenerateEvent};
use registry::server::access::Refusal;

/// A failed request.
#[derive(Debug)]
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

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        let status = status(&error);
        Self::new(status, told(&error))
    }
}

/// Advice for a full disk.
const FULL: &str = "the disk is full: `lode du` shows what each model takes, `lode rm` removes one, `lode gc` deletes what no model uses";

/// Returns an error with its causes, and advice if the disk became full.
fn told(error: &anyhow::Error) -> String {
    let told = error_with_causes(error.as_ref());
    if became_full(error) { format!("{told}; {FULL}") } else { told }
}

fn became_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(content::error::is_full))
}

/// Returns the status of an error: that of the first error in the chain that determines one.
pub(crate) fn status(error: &anyhow::Error) -> StatusCode {
    if became_full(error) {
        return StatusCode::INSUFFICIENT_STORAGE;
    }
    error.chain().find_map(status_of).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the status that an error determines; `None` if its cause must decide.
fn status_of(cause: &(dyn std::error::Error + 'static)) -> Option<StatusCode> {
    if let Some(error) = cause.downcast_ref() {
        return Some(match error {
            library::Error::NotFound(_) | library::Error::Absent { .. } | library::Error::NoVersion(_) => {
                StatusCode::NOT_FOUND
            }
            library::Error::Pinned(_) => StatusCode::CONFLICT,
            library::Error::CannotRun { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            library::Error::CannotPlan(_) => StatusCode::BAD_REQUEST,
            library::Error::NoRoom { .. } => StatusCode::INSUFFICIENT_STORAGE,
        });
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(match error {
            upkeep::Error::NoTensor { .. } => StatusCode::NOT_FOUND,
            upkeep::Error::NoNumbers { .. } => StatusCode::BAD_REQUEST,
        });
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(match error {
            build::Error::BadArchive(_) | build::Error::Malformed(_) | build::Error::CannotExport(_) => {
                StatusCode::BAD_REQUEST
            }
        });
    }
    if let Some(error) = cause.downcast_ref::<import::Error>() {
        return is_bad_source(error).then_some(StatusCode::BAD_REQUEST);
    }
    if cause.is::<manifests::Error>() {
        return Some(StatusCode::BAD_REQUEST);
    }
    match cause.downcast_ref() {
        Some(store::Error::Content(content::Error::Busy(_))) => Some(StatusCode::CONFLICT),
        Some(store::Error::Content(content::Error::ReadOnly { .. })) => Some(StatusCode::FORBIDDEN),
        _ => None,
    }
}

/// Whether an import failed because of its input.
fn is_bad_source(error: &import::Error) -> bool {
    match error {
        import::Error::Source(_) | import::Error::Format { .. } => true,
        import::Error::Io { source, .. } => source.kind() != ErrorKind::Other,
        import::Error::Target { .. }
        | import::Error::Damaged { .. }
        | import::Error::Changed { .. }
        | import::Error::Cancelled => false,
    }
}

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

impl From<manifests::Error> for Failed {
    fn from(error: manifests::Error) -> Self {
        Self::bad_request(error.to_string())
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
    use super::*;

    #[test]
    fn what_a_cause_has_said_is_told_once() {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such file");
        let said = anyhow::Error::new(import::Error::io("find", "/nowhere", missing()));
        assert_eq!(told(&said), "cannot find `/nowhere`: no such file");
        let unsaid = anyhow::Error::new(missing()).context("the model cannot be read");
        assert_eq!(told(&unsaid), "the model cannot be read: no such file");
    }
}
