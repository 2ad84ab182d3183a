//! Errors in the format of Anthropic's API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Frame, Refusal};

/// Body of a response with status 400 or above, and the last event of a stream that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub struct ErrorResponse {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: ErrorObject,
}

/// An error: its type and its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorObject")]
pub struct ErrorObject {
    /// Error type, which follows from the HTTP status.
    #[serde(rename = "type")]
    pub kind: String,
    /// Human-readable message.
    pub message: String,
}

impl ErrorResponse {
    /// Creates an error with the type that fits the HTTP status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        let message: String = message.into();
        // Claude Code compacts its conversation when it reads these words.
        let message = match message.strip_prefix(protocol::TOO_LONG) {
            Some(numbers) => format!("prompt is too long{numbers}"),
            None => message,
        };
        Self { kind: "error".to_owned(), error: ErrorObject { kind: kind.to_owned(), message } }
    }

    /// Returns the event that ends a failed stream.
    pub fn frame(&self) -> Frame {
        Frame::named("error", self)
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> Self {
        Self::new(400, refusal.to_string())
    }
}
