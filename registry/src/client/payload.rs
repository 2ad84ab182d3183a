//! Requests and their bodies.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use reqwest::header::HeaderMap;
use reqwest::{Body, Method, Url};

use super::limits::HostLimits;
use super::scope::Scope;

/// Bodies up to this size are sent at once. Longer ones are sent in pieces of this size, so that a
/// stall is detected.
const PIECE: usize = 64 * 1024;

/// A request to a registry.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// A URL from [`Host::url`](super::Host::url), or a `Location` header resolved against the URL
    /// of its response.
    pub url: Url,
    /// The headers, except `Authorization` and `Content-Length`, which the host adds.
    pub headers: HeaderMap,
    /// The scope of the token.
    pub scope: &'a Scope,
    /// The body.
    pub payload: Payload,
}

/// Creates a stream of a body's bytes, from its beginning.
pub type MakeStream = dyn Fn() -> BoxStream<'static, Result<Bytes, io::Error>> + Send + Sync;

/// The body of a request. Every kind can be sent again.
#[derive(Clone)]
pub enum Payload {
    /// No body.
    None,
    /// A body in memory.
    Bytes(Bytes),
    /// A body that is read while it is sent.
    Stream {
        /// Number of bytes of the stream; another number is an error.
        length: u64,
        /// Called for each attempt.
        make: Arc<MakeStream>,
    },
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The bytes may be a secret; their number is not.
        write!(f, "Payload({} bytes)", self.length())
    }
}

impl Payload {
    /// Number of bytes to send.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Stream { length, .. } => *length,
        }
    }

    /// The body for one attempt; `None` if there is none.
    pub(super) fn body(&self, progress: &Arc<SendProgress>) -> Option<Body> {
        let (length, stream) = match self {
            Self::None => return None,
            Self::Bytes(bytes) if bytes.len() <= PIECE => return Some(Body::from(bytes.clone())),
            Self::Bytes(bytes) => (bytes.len() as u64, pieces(bytes.clone())),
            Self::Stream { length, make } => (*length, make()),
        };
        progress.set(SendingState::Sending { last: Instant::now() });
        Some(Body::wrap_stream(Watched { stream, left: length, progress: progress.clone() }))
    }
}

/// Whether sending a request twice has the same effect as sending it once. A second `POST` leaves
/// one upload that is never used. Bytes that are appended to an upload are not sent again, because
/// the registry may have kept a part of them; the client queries the offset instead.
pub(super) fn is_repeatable(method: &Method, payload: &Payload) -> bool {
    match *method {
        Method::PATCH => false,
        Method::PUT => !matches!(payload, Payload::Stream { .. }),
        _ => true,
    }
}

fn pieces(bytes: Bytes) -> BoxStream<'static, Result<Bytes, io::Error>> {
    let starts = (0..bytes.len()).step_by(PIECE);
    let piece = move |start: usize| Ok(bytes.slice(start..bytes.len().min(start + PIECE)));
    futures_util::stream::iter(starts.map(piece)).boxed()
}

/// The progress of sending a body, shared by the sender and the timeout.
#[derive(Debug)]
pub(super) struct SendProgress(Mutex<SendingState>);

#[derive(Debug)]
enum SendingState {
    /// The connection accepts our data.
    Sending { last: Instant },
    /// We have no data yet, because of a slow disk or our own rate limit. The registry is not at
    /// fault.
    Reading,
    /// All data was sent, as far as we know.
    Sent { at: Instant },
    /// The data to send cannot be read.
    Broken(io::Error),
}

impl SendProgress {
    /// A request with no body.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(SendingState::Sent { at: Instant::now() })))
    }

    /// The deadline for progress. While we are the slow side, it stays ahead of the present time.
    pub(super) fn deadline(&self, method: &Method, limits: &HostLimits) -> Instant {
        let head = if *method == Method::PUT { limits.put_head } else { limits.head };
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            SendingState::Sending { last } => last + limits.stall,
            SendingState::Reading | SendingState::Broken(_) => Instant::now() + limits.stall,
            SendingState::Sent { at } => at + head,
        }
    }

    /// The reader's error, if it broke the request.
    pub(super) fn failure(&self) -> Option<io::Error> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, SendingState::Reading) {
            SendingState::Broken(error) => Some(error),
            other => {
                *state = other;
                None
            }
        }
    }

    fn set(&self, state: SendingState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// The stream of a body. It reports progress and yields exactly the announced number of bytes.
struct Watched {
    stream: BoxStream<'static, Result<Bytes, io::Error>>,
    left: u64,
    progress: Arc<SendProgress>,
}

impl Watched {
    fn account_for(&mut self, piece: Option<Result<Bytes, io::Error>>) -> Result<Option<Bytes>, io::Error> {
        let Some(piece) = piece.transpose()? else {
            return match self.left {
                0 => Ok(None),
                left => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("it ends {left} bytes too early"))),
            };
        };
        self.left = self
            .left
            .checked_sub(piece.len() as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is longer than announced"))?;
        let now = Instant::now();
        self.progress.set(if self.left == 0 {
            SendingState::Sent { at: now }
        } else {
            SendingState::Sending { last: now }
        });
        Ok(Some(piece))
    }
}

impl Stream for Watched {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(piece) = self.stream.poll_next_unpin(context) else {
            self.progress.set(SendingState::Reading);
            return Poll::Pending;
        };
        match self.account_for(piece) {
            Ok(piece) => Poll::Ready(piece.map(Ok)),
            Err(error) => {
                let told = io::Error::new(error.kind(), error.to_string());
                self.progress.set(SendingState::Broken(error));
                Poll::Ready(Some(Err(told)))
            }
        }
    }
}
