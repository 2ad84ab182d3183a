//! Answers in lines of JSON.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;

/// Lines that wait for a slow client before the sender waits too.
const LINES: usize = 64;

/// Where lines go.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    /// Sends a line; `false` where the client is gone.
    pub(crate) async fn send(&self, line: &impl Serialize) -> bool {
        self.0.send(encode(line)).await.is_ok()
    }

    /// The same for threads.
    pub(crate) fn send_blocking(&self, line: &impl Serialize) -> bool {
        self.0.blocking_send(encode(line)).is_ok()
    }

    /// Returns when the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the client is there.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

fn encode(line: &impl Serialize) -> Bytes {
    // Documents of ours have only text keys and finite numbers or null.
    let mut bytes = serde_json::to_vec(line).unwrap_or_else(|e| format!(r#"{{"error":"{e}"}}"#).into_bytes());
    bytes.push(b'\n');
    bytes.into()
}

/// A way to send lines, and the response that carries them.
pub(crate) fn lines() -> (Lines, Response) {
    let (sender, receiver) = mpsc::channel(LINES);
    let stream = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    let response = ([("content-type", "application/x-ndjson")], Body::from_stream(stream)).into_response();
    (Lines(sender), response)
}
