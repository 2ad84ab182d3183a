//! The activity of a connection: when it last transferred bytes, and how many requests it has in
//! progress.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::limits::Times;

/// The activity of a connection. Clones refer to the same connection.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    /// When bytes were last transferred, in milliseconds since the beginning.
    last: AtomicU64,
    /// When a write began to block, in milliseconds plus one; 0 if no write blocks.
    waits: AtomicU64,
    /// When the headers of a request began to arrive, in milliseconds plus one; 0 if none are
    /// arriving.
    headers: AtomicU64,
    /// Number of requests in progress.
    requests: AtomicUsize,
}

/// A request in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(Activity);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self(Arc::new(Inner {
            begun: Instant::now(),
            last: zero(),
            waits: zero(),
            headers: zero(),
            requests: AtomicUsize::new(0),
        }))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn touch(&self) {
        self.0.last.store(self.now(), Ordering::Relaxed);
    }

    /// Records the arrival of a request.
    pub(super) fn begin(&self) -> Busy {
        self.0.headers.store(0, Ordering::Relaxed);
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Returns since when the connection has been idle. `None` while a request is in progress or a
    /// write blocks.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let last = Duration::from_millis(self.0.last.load(Ordering::Relaxed));
        let busy = self.0.requests.load(Ordering::Relaxed) > 0 || self.0.waits.load(Ordering::Relaxed) > 0;
        (!busy).then(|| self.0.begun + last)
    }

    /// Records incoming bytes. If no request is in progress, they are headers of the next one.
    fn came(&self) {
        self.touch();
        if self.0.requests.load(Ordering::Relaxed) == 0 {
            // Only the first of these bytes sets the time.
            let begun = self.now() + 1;
            let _ = self.0.headers.compare_exchange(0, begun, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the client was silent for too long: while sending headers, between requests, or
    /// without reading an answer.
    pub(super) fn is_over(&self, times: Times) -> bool {
        let since = |begun: &AtomicU64, longest: Duration| {
            let begun = begun.load(Ordering::Relaxed);
            begun > 0 && Duration::from_millis(self.now().saturating_sub(begun - 1)) >= longest
        };
        since(&self.0.waits, times.stall)
            || since(&self.0.headers, times.headers)
            || self.idle_since().is_some_and(|since| since.elapsed() >= times.idle)
    }
}

/// A stream that records its activity.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Activity,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity }
    }

    fn wrote<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let waits = &self.activity.0.waits;
        if result.is_ready() {
            waits.store(0, Ordering::Relaxed);
            self.activity.touch();
        } else if waits.load(Ordering::Relaxed) == 0 {
            waits.store(self.activity.now() + 1, Ordering::Relaxed);
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.came();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
