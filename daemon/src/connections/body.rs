//! Bodies of requests with a deadline, and bodies of answers that mark their request as in
//! progress.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::activity::Busy;

/// How long the daemon waits for a body in total, since its first byte, before the rate counts.
const GRACE: Duration = Duration::from_secs(30);
/// The slowest accepted rate of a body while the daemon waits for it, in bytes per second. A modem
/// is faster; a client that sends single bytes to hold a place is slower.
const SLOWEST: u64 = 1024;

/// The body of a request. It fails if no bytes arrive for too long while a handler waits for it, or
/// if the whole body arrives too slowly.
#[derive(Debug)]
pub(super) struct Punctual {
    body: Incoming,
    longest: Duration,
    /// Runs while a handler waits.
    deadline: Option<Pin<Box<Sleep>>>,
    since: Instant,
    waited: Duration,
    received: u64,
}

impl Punctual {
    pub(super) fn new(body: Incoming, longest: Duration) -> Self {
        Self { body, longest, deadline: None, since: Instant::now(), waited: Duration::ZERO, received: 0 }
    }
}

impl HttpBody for Punctual {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            // The wait before the first byte does not count towards the rate.
            if self.deadline.take().is_some() && self.received > 0 {
                let waited = self.since.elapsed();
                self.waited += waited;
            }
            if let Some(Ok(frame)) = &frame {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            if frame.is_some() && is_too_slow(self.received, self.waited) {
                let reason = format!("the body arrives at less than {SLOWEST} bytes per second");
                return Poll::Ready(Some(Err(axum::Error::new(io::Error::new(io::ErrorKind::TimedOut, reason)))));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        let longest = self.longest;
        if self.deadline.is_none() {
            self.since = Instant::now();
        }
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + longest)));
        if deadline.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let reason = format!("no bytes of the body arrived for {} seconds", longest.as_secs());
        Poll::Ready(Some(Err(axum::Error::new(io::Error::new(io::ErrorKind::TimedOut, reason)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether this number of bytes in this waiting time indicates a client that only holds a place.
fn is_too_slow(received: u64, waited: Duration) -> bool {
    waited > GRACE && received < waited.as_secs().saturating_mul(SLOWEST)
}

/// The body of an answer. Its request counts as in progress until the body is sent or dropped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_bodies_are_told_from_slow_lines() {
        let seconds = Duration::from_secs;
        assert!(!is_too_slow(30, seconds(30)), "it has just begun");
        assert!(is_too_slow(60, seconds(60)), "a byte each second");
        assert!(!is_too_slow(3000 * 60, seconds(60)), "3 kB/s");
    }
}
