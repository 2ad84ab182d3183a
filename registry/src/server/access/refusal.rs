//! Refusals of access control, and their responses.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::ErrorCode;
use crate::code::ErrorBody;

/// Reasons why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client must authenticate, or its credentials are wrong.
    Unauthorized {
        /// The value of `WWW-Authenticate`.
        challenge: HeaderValue,
        /// A message for people.
        message: String,
    },
    /// No client may do this here.
    Denied {
        /// A message for people.
        message: String,
    },
    /// The login cannot be checked now.
    Unavailable {
        /// A message for people.
        message: String,
    },
    /// Too many passwords are being checked.
    TooMany {
        /// The wait before a retry.
        retry_after: Duration,
        /// A message for people.
        message: String,
    },
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized { challenge, message } => {
                let body = Json(ErrorBody::new(ErrorCode::Unauthorized, message));
                let challenge = [(header::WWW_AUTHENTICATE, challenge)];
                (StatusCode::UNAUTHORIZED, challenge, Extension(ErrorCode::Unauthorized), body).into_response()
            }
            Self::Denied { message } => {
                let body = Json(ErrorBody::new(ErrorCode::Denied, message));
                (StatusCode::FORBIDDEN, Extension(ErrorCode::Denied), body).into_response()
            }
            Self::Unavailable { message } => {
                let seconds = [(header::RETRY_AFTER, HeaderValue::from_static("10"))];
                let body = Json(ErrorBody::new(ErrorCode::Unsupported, message));
                (StatusCode::SERVICE_UNAVAILABLE, seconds, Extension(ErrorCode::Unsupported), body).into_response()
            }
            Self::TooMany { retry_after, message } => {
                let seconds = [(header::RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)))];
                let body = Json(ErrorBody::new(ErrorCode::TooManyRequests, message));
                (StatusCode::TOO_MANY_REQUESTS, seconds, Extension(ErrorCode::TooManyRequests), body).into_response()
            }
        }
    }
}
