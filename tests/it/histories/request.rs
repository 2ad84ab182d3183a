//! Requests to a daemon that may be killed before it responds.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::Value;

/// The time limit of a response, up to its last byte.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The request succeeded, with this response body.
    Done(Vec<u8>),
    /// The daemon reported an error.
    Refused { status: u16, text: String },
    /// The connection ended before the response, for this reason: the outcome is unknown.
    Lost(String),
}

/// Sends a request and reads the whole response. The request must come from a client with
/// [`PATIENCE`] as its timeout.
pub(super) async fn ask(request: RequestBuilder) -> Answer {
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => return lost(&error),
    };
    let status = response.status();
    match response.bytes().await {
        Ok(body) if status.is_success() => Answer::Done(body.to_vec()),
        Ok(body) => Answer::Refused { status: status.as_u16(), text: String::from_utf8_lossy(&body).into_owned() },
        Err(error) => lost(&error),
    }
}

fn lost(error: &reqwest::Error) -> Answer {
    assert!(!error.is_timeout(), "there is no answer after {PATIENCE:?}: {error}");
    Answer::Lost(format!("{error:?}"))
}

impl Answer {
    /// Returns the JSON document of a successful response, or `None` for any other outcome.
    pub(super) fn document(&self) -> Option<Value> {
        let Self::Done(body) = self else { return None };
        Some(serde_json::from_slice(body).expect("an answer of one JSON document"))
    }

    /// Returns the last line of a successful response as JSON.
    pub(super) fn last_line(&self) -> Option<Value> {
        let Self::Done(body) = self else { return None };
        let text = String::from_utf8_lossy(body);
        let line = text.lines().last().expect("an answer of at least a line");
        Some(serde_json::from_str(line).expect("a line of JSON"))
    }

    /// Returns the body of a response that must be successful.
    pub(super) fn expect_done(self, what: &str) -> Vec<u8> {
        match self {
            Self::Done(body) => body,
            other => panic!("{what}: {other:?}"),
        }
    }
}
