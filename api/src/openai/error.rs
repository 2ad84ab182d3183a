//! Errors in the format of `OpenAI`'s API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Frame, Refusal};

/// Body of a response with status 400 or above, and the last event of a stream that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiError")]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorObject,
}

/// An error: its type, message and cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiErrorObject")]
pub struct ErrorObject {
    /// Human-readable message.
    pub message: String,
    /// Error type, which follows from the HTTP status.
    #[serde(rename = "type")]
    pub kind: String,
    /// The invalid field of the request, if the error is about a field.
    pub param: Option<String>,
    /// Machine-readable error code, if there is one.
    pub code: Option<String>,
}

impl ErrorResponse {
    /// Creates an error with the type that fits the HTTP status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let (kind, code) = match status {
            401 => ("authentication_error", Some("invalid_api_key")),
            403 => ("permission_error", None),
            404 => ("not_found_error", None),
            429 => ("rate_limit_error", None),
            400..=499 => ("invalid_request_error", None),
            _ => ("api_error", None),
        };
        let message = message.into();
        let code = code.or_else(|| message.starts_with(protocol::TOO_LONG).then_some("context_length_exceeded"));
        let code = code.map(str::to_owned);
        Self { error: ErrorObject { message, kind: kind.to_owned(), param: None, code } }
    }

    /// Returns the event that ends a failed stream. No `[DONE]` follows.
    pub fn frame(&self) -> Frame {
        Frame::data(self)
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> Self {
        let mut response = Self::new(400, refusal.message);
        response.error.param = Some(refusal.param);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statuses_have_types() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (404, "not_found_error"),
            (413, "invalid_request_error"),
            (500, "api_error"),
            (503, "api_error"),
        ] {
            assert_eq!(ErrorResponse::new(status, "x").error.kind, kind, "{status}");
        }
        let refused = ErrorResponse::from(Refusal::new("stop", "no"));
        let document =
            json!({"error": {"message": "no", "type": "invalid_request_error", "param": "stop", "code": null}});
        assert_eq!(refused.frame().data, document.to_string());
    }
}
