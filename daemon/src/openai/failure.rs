//! Errors in the format of `OpenAI`'s API.

use api::Refusal;
use api::openai::ErrorResponse;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::body::body_refused_by;
use crate::error::Failed;

/// A failed request.
#[derive(Debug)]
pub(crate) struct OpenAiFailure {
    status: StatusCode,
    body: ErrorResponse,
}

impl IntoResponse for OpenAiFailure {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), "{}", self.body.error.message);
        }
        (self.status, Json(self.body)).into_response()
    }
}

impl<E: Into<Failed>> From<E> for OpenAiFailure {
    fn from(error: E) -> Self {
        let failed: Failed = error.into();
        let mut body = ErrorResponse::new(failed.status.as_u16(), failed.message);
        if failed.status == StatusCode::NOT_FOUND {
            // Only the model can be missing here.
            (body.error.param, body.error.code) = (Some("model".to_owned()), Some("model_not_found".to_owned()));
        }
        Self { status: failed.status, body }
    }
}

/// Converts a refusal, which names the invalid field separately from the message.
pub(crate) fn refused(refusal: Refusal) -> OpenAiFailure {
    OpenAiFailure { status: StatusCode::BAD_REQUEST, body: refusal.into() }
}

body_refused_by!(OpenAiFailure);
