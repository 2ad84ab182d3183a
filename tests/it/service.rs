//! Serves a router on a free port.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A server that ends, with all its connections, when it is dropped.
///
/// It has its own thread and runtime, because a test may block while a program that it started uses
/// this server.
pub(crate) struct Service {
    /// The address and port.
    pub(crate) address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub(crate) fn start(router: Router) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), router)
    }

    /// Starts the server at another address of this machine.
    pub(crate) fn start_at(address: IpAddr, router: Router) -> Self {
        let listener = std::net::TcpListener::bind((address, 0)).expect("an address of this machine");
        let address = listener.local_addr().expect("bound").to_string();
        listener.set_nonblocking(true).expect("a socket");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || serve(listener, router, stopped));
        Self { address, stop: Some(stop), thread: Some(thread) }
    }
}

fn serve(listener: std::net::TcpListener, router: Router, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listener");
        tokio::select! {
            _ = stopped => {}
            served = axum::serve(listener, router) => served.expect("it serves until it is stopped"),
        }
    });
}

impl Drop for Service {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "a server of the test panicked");
    }
}

/// Replaces a header.
pub(crate) fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    headers.insert(name, value.parse().expect("a header"));
}

/// Returns a response with all of the bytes.
pub(crate) fn whole(bytes: Bytes) -> Response {
    let mut answer = Response::new(Body::empty());
    set(answer.headers_mut(), header::CONTENT_LENGTH, &bytes.len().to_string());
    *answer.body_mut() = Body::from(bytes);
    answer
}

/// Returns a response with the requested range, or with all bytes if there is no range.
pub(crate) fn whole_or_part(bytes: Bytes, range: Option<&str>) -> Response {
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return whole(bytes);
    };
    let size = bytes.len();
    let first: usize = first.parse().expect("a client asks for `bytes=FIRST-` or `bytes=FIRST-LAST`");
    let last = last.parse().map_or(size, |last: usize| size.min(last.saturating_add(1)));
    if first >= last {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let mut answer = whole(bytes.slice(first..last));
    *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    set(answer.headers_mut(), header::CONTENT_RANGE, &format!("bytes {first}-{}/{size}", last - 1));
    answer
}
