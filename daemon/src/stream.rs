//! Responses as newline-delimited JSON.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;

/// Maximal number of lines that wait for a slow client before the sender must wait.
const LINES: usize = 64;

/// The sender of lines.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    /// Sends a line; returns `false` if the client is gone.
    pub(crate) async fn send(&self, line: &impl Serialize) -> bool {
        self.0.send(encode(line)).await.is_ok()
    }

    /// Like [`Lines::send`], for blocking threads.
    pub(crate) fn send_blocking(&self, line: &impl Serialize) -> bool {
        self.0.blocking_send(encode(line)).is_ok()
    }

    /// Returns when the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the client is still connected.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

fn encode(line: &impl Serialize) -> Bytes {
    // Serialization cannot fail: our documents have only text keys and finite numbers or null.
    let mut bytes = serde_json::to_vec(line).unwrap_or_else(|e| format!(r#"{{"error":"{e}"}}"#).into_bytes());
    bytes.push(b'\n');
    bytes.into()
}

/// Creates a sender of lines and the response that carries them.
pub(crate) fn lines() -> (Lines, Response) {
    let (sender, receiver) = mpsc::channel(LINES);
    let stream = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    let response = ([("content-type", "application/x-ndjson")], Body::from_stream(stream)).into_response();
    (Lines(sender), response)
}
