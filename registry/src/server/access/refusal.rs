//! Requests that are not let through, and what the protocol says to them.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::ErrorCode;
use crate::code::ErrorBody;

/// Why a request is not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Who asks must say who they are, or did so wrongly.
    Unauthorized {
        /// The value of `WWW-Authenticate`.
        challenge: HeaderValue,
        /// For people.
        message: String,
    },
    /// Nobody may do this here.
    Denied {
        /// For people.
        message: String,
    },
    /// Too many passwords are being checked.
    TooMany {
        /// When to try again.
        retry_after: Duration,
        /// For people.
        message: String,
    },
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized { challenge, message } => {
                let body = Json(ErrorBody::new(ErrorCode::Unauthorized, message));
                (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], body).into_response()
            }
            Self::Denied { message } => {
                (StatusCode::FORBIDDEN, Json(ErrorBody::new(ErrorCode::Denied, message))).into_response()
            }
            Self::TooMany { retry_after, message } => {
                let seconds = [(header::RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)))];
                let body = Json(ErrorBody::new(ErrorCode::TooManyRequests, message));
                (StatusCode::TOO_MANY_REQUESTS, seconds, body).into_response()
            }
        }
    }
}
