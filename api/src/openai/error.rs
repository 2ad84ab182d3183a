//! Errors as `OpenAI`'s API tells them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Frame, Refusal};

/// Body of an answer with a status of 400 or more, and the last event of a stream that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiError")]
pub struct ErrorResponse {
    /// What went wrong.
    pub error: ErrorObject,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiErrorObject")]
pub struct ErrorObject {
    /// For people.
    pub message: String,
    /// Whose fault it was, roughly.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field of the request that is at fault, where one is.
    pub param: Option<String>,
    /// For programs, where there is one.
    pub code: Option<String>,
}

impl ErrorResponse {
    /// An error with the type that fits its HTTP status.
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

    /// The event that ends a stream which failed. No `[DONE]` follows.
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
