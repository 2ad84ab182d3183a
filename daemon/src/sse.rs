//! Responses as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use api::Frame;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;

/// Maximal number of frames that wait for a slow client before the sender must wait.
const FRAMES: usize = 64;
/// How long the stream may be silent before a comment keeps the connection alive for proxies and
/// clients.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The sender of frames.
#[derive(Clone, Debug)]
pub(crate) struct Frames(mpsc::Sender<Bytes>);

impl Frames {
    /// Sends frames in one write; returns `false` if the client is gone.
    pub(crate) async fn send(&self, frames: &[Frame]) -> bool {
        let text: String = frames.iter().map(Frame::to_string).collect();
        text.is_empty() || self.0.send(text.into()).await.is_ok()
    }

    /// Returns when the client is gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Creates a sender of frames and the response that carries them.
pub(crate) fn frames() -> (Frames, Response) {
    with_comments(KEEP_ALIVE)
}

/// Like [`frames`], with a comment after this much silence.
fn with_comments(silence: Duration) -> (Frames, Response) {
    let (sender, receiver) = mpsc::channel(FRAMES);
    let stream = futures_util::stream::unfold(receiver, move |mut receiver: mpsc::Receiver<Bytes>| async move {
        let bytes = match tokio::time::timeout(silence, receiver.recv()).await {
            Ok(bytes) => bytes?,
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        };
        Some((Ok::<_, Infallible>(bytes), receiver))
    });
    let headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache")];
    (Frames(sender), (headers, Body::from_stream(stream)).into_response())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn silence_is_filled_with_comments() {
        // Dropping the sender would end the stream.
        let (_frames, response) = with_comments(Duration::from_millis(1));
        let mut body = response.into_body().into_data_stream();
        assert_eq!(body.next().await.expect("a comment").expect("bytes"), ": keep-alive\n\n");
    }

    #[tokio::test]
    async fn frames_arrive_and_a_client_that_went_is_noticed() {
        let (frames, response) = frames();
        let mut body = response.into_body().into_data_stream();
        assert!(frames.send(&[Frame::done()]).await);
        assert_eq!(body.next().await.expect("a frame").expect("bytes"), "data: [DONE]\n\n");
        drop(body);
        assert!(!frames.send(&[Frame::done()]).await);
    }
}
