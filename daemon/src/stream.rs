//! Responses whose body is sent in pieces, and responses as newline-delimited JSON.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;

/// Maximal number of pieces that wait for a slow client before the sender must wait.
const PIECES: usize = 64;

/// The sender of a body in pieces.
#[derive(Clone, Debug)]
pub(crate) struct BodySender(mpsc::Sender<Bytes>);

impl BodySender {
    /// Creates a sender and its receiver.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(PIECES);
        (Self(sender), receiver)
    }

    /// Queues a text as one piece; waits while the queue is full. Returns `false` if the client is
    /// gone. An empty text is not queued and returns `true`.
    pub(crate) async fn send(&self, text: String) -> bool {
        text.is_empty() || self.0.send(text.into()).await.is_ok()
    }

    /// Returns when the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Sends documents as lines of JSON.
#[derive(Clone, Debug)]
pub(crate) struct Lines(BodySender);

impl Lines {
    /// Sends a line; returns `false` if the client is gone.
    pub(crate) async fn send(&self, line: &impl Serialize) -> bool {
        self.0.send(encode(line)).await
    }

    /// Like [`Lines::send`], for blocking threads.
    pub(crate) fn send_blocking(&self, line: &impl Serialize) -> bool {
        self.0.0.blocking_send(encode(line).into()).is_ok()
    }

    /// Returns when the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the client is still connected.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.0.is_closed()
    }
}

/// Serializes a document as a line.
pub(crate) fn encode(line: &impl Serialize) -> String {
    // Serialization cannot fail: our documents have only text keys and finite numbers or null.
    let mut text = serde_json::to_string(line).unwrap_or_else(|e| format!(r#"{{"error":"{e}"}}"#));
    text.push('\n');
    text
}

/// Creates a sender of lines and the response that carries them.
pub(crate) fn lines() -> (Lines, Response) {
    let (pieces, response) = line_body();
    (Lines(pieces), response)
}

/// Creates a sender of [encoded](encode) lines and the response that carries them.
pub(crate) fn line_body() -> (BodySender, Response) {
    let (pieces, receiver) = BodySender::channel();
    let stream = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    let response = ([("content-type", "application/x-ndjson")], Body::from_stream(stream)).into_response();
    (pieces, response)
}
