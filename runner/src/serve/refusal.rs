//! Requests that fail: the failure and its HTTP status.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use protocol::{Failure, FailureKind};

use crate::engine::Fault;
use crate::failure;

/// A failure with its HTTP status.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    failure: Failure,
}

impl Refusal {
    pub(super) fn new(kind: FailureKind, error: String) -> Self {
        let status = match kind {
            FailureKind::BadRequest => StatusCode::BAD_REQUEST,
            FailureKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            FailureKind::OutOfMemory => StatusCode::INSUFFICIENT_STORAGE,
            FailureKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, failure: Failure { error, kind } }
    }

    /// Returns the refusal of a request that the daemon should not have sent in this state.
    pub(super) fn conflict(error: String) -> Self {
        Self { status: StatusCode::CONFLICT, failure: Failure { error, kind: FailureKind::BadRequest } }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.failure)).into_response()
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::new(failure::kind(&error), format!("{error:#}"))
    }
}

impl From<prompt::Error> for Refusal {
    fn from(error: prompt::Error) -> Self {
        Self::new(FailureKind::BadRequest, error.to_string())
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::new(fault.kind(), fault.to_string())
    }
}
