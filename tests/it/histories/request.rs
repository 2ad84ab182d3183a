//! Requests to a daemon that may be killed before it answers.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::Value;

/// How long an answer may take, to its last byte.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// What became of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// It was done; the body of the answer.
    Done(Vec<u8>),
    /// It was not done, and the daemon said so.
    Refused { status: u16, text: String },
    /// The connection ended before the answer did, in this way: nobody knows.
    Lost(String),
}

/// Sends a request and waits for all of its answer. It must be that of a client with [`PATIENCE`].
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
    /// The document of what was done; none where it was not.
    pub(super) fn document(&self) -> Option<Value> {
        let Self::Done(body) = self else { return None };
        Some(serde_json::from_slice(body).expect("an answer of one JSON document"))
    }

    /// The last line of what was done.
    pub(super) fn last_line(&self) -> Option<Value> {
        let Self::Done(body) = self else { return None };
        let text = String::from_utf8_lossy(body);
        let line = text.lines().last().expect("an answer of at least a line");
        Some(serde_json::from_str(line).expect("a line of JSON"))
    }

    /// The body of an answer that must have come.
    pub(super) fn expect_done(self, what: &str) -> Vec<u8> {
        match self {
            Self::Done(body) => body,
            other => panic!("{what}: {other:?}"),
        }
    }
}
