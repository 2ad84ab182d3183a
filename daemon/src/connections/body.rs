//! Bodies of requests that have to come, and of answers for as long as which a request counts.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::activity::Busy;

/// A body of a request. It fails where nothing of it comes for too long while somebody waits for it.
#[derive(Debug)]
pub(super) struct Punctual {
    body: Incoming,
    longest: Duration,
    /// Runs while somebody waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Punctual {
    pub(super) fn new(body: Incoming, longest: Duration) -> Self {
        Self { body, longest, deadline: None }
    }
}

impl HttpBody for Punctual {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.deadline = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        let longest = self.longest;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + longest)));
        if deadline.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let reason = format!("nothing of the body came for {} seconds", longest.as_secs());
        Poll::Ready(Some(Err(axum::Error::new(io::Error::new(io::ErrorKind::TimedOut, reason)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer: its request is being answered until the body has gone, or nobody wants it any more.
#[derive(Debug)]
pub(super) struct Answering {
    body: Body,
    _busy: Busy,
}

impl Answering {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
