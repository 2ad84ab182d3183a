//! Responses as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use api::Frame;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;

use crate::stream::BodySender;

/// How long the stream may be silent before a comment keeps the connection alive for proxies and
/// clients.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Returns frames as the text of a stream.
pub(crate) fn text(frames: &[Frame]) -> String {
    frames.iter().map(Frame::to_string).collect()
}

/// Creates a sender of the [text](text()) of frames, and the response that carries them.
pub(crate) fn frames() -> (BodySender, Response) {
    with_comments(KEEP_ALIVE)
}

/// Like [`frames`], with a comment after this much silence.
fn with_comments(silence: Duration) -> (BodySender, Response) {
    let (pieces, receiver) = BodySender::channel();
    let stream = futures_util::stream::unfold(receiver, move |mut receiver: mpsc::Receiver<Bytes>| async move {
        let bytes = match tokio::time::timeout(silence, receiver.recv()).await {
            Ok(bytes) => bytes?,
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        };
        Some((Ok::<_, Infallible>(bytes), receiver))
    });
    let headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache")];
    (pieces, (headers, Body::from_stream(stream)).into_response())
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
        assert!(frames.send(text(&[Frame::done()])).await);
        assert_eq!(body.next().await.expect("a frame").expect("bytes"), "data: [DONE]\n\n");
        drop(body);
        assert!(!frames.send(text(&[Frame::done()])).await);
    }
}
