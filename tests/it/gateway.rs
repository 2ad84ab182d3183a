//! A reverse proxy between a client and a registry that records requests, delays responses, and
//! breaks connections.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use reqwest::Client;
use tokio::sync::watch;

use crate::service::Service;

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    pub(crate) method: Method,
    /// Path and query, with `%3A` decoded to `:`.
    pub(crate) target: String,
    pub(crate) range: Option<String>,
    /// Bytes of the request body.
    up: Arc<AtomicU64>,
    /// Bytes of the response body.
    down: Arc<AtomicU64>,
}

impl Passed {
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::SeqCst)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::SeqCst)
    }

    /// Returns the first digest in the target.
    pub(crate) fn digest(&self) -> Option<String> {
        let (_, rest) = self.target.split_once("sha256:")?;
        Some(format!("sha256:{}", rest.get(..64)?))
    }

    fn is(&self, part: &str) -> bool {
        self.target.split('?').next().is_some_and(|path| path.contains(part))
    }
}

/// A fault of responses whose target names a given digest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The response is 404.
    Missing,
    /// The connection breaks after so many bytes of the body.
    CutAfter(u64),
}

struct Shared {
    upstream: String,
    http: Client,
    passed: Mutex<Vec<Passed>>,
    faults: Mutex<HashMap<String, Fault>>,
    /// The number of bytes of all response bodies.
    sent: AtomicU64,
    /// The number of bytes of response bodies after which the proxy stops forwarding.
    limit: watch::Sender<u64>,
    /// The rate of all response bodies together, in bytes per second; 0 if it is not limited.
    rate: AtomicU64,
    /// When the next piece may be sent.
    next: Mutex<Option<Instant>>,
    /// The number of requests whose response has not ended.
    open: watch::Sender<u64>,
}

impl Shared {
    /// Waits until a piece may be sent at the limited rate.
    async fn pace(&self, bytes: u64) {
        let rate = self.rate.load(Ordering::SeqCst);
        if rate == 0 {
            return;
        }
        let at = {
            let mut next = lock(&self.next);
            let at = next.unwrap_or_else(Instant::now).max(Instant::now());
            *next = Some(at + Duration::from_secs_f64(bytes as f64 / rate as f64));
            at
        };
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Counts a request as open until it is dropped.
struct OpenRequest(Arc<Shared>);

impl OpenRequest {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.send_modify(|open| *open += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// A reverse proxy on its own port.
pub(crate) struct Gateway {
    pub(crate) address: String,
    shared: Arc<Shared>,
    _service: Service,
}

impl Gateway {
    /// Starts a proxy for the registry at `upstream`, given as `HOST:PORT`.
    pub(crate) fn to(upstream: &str) -> Self {
        let policy = reqwest::redirect::Policy::none();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            http: crate::server::http().redirect(policy).build().expect("a client"),
            passed: Mutex::default(),
            faults: Mutex::default(),
            sent: AtomicU64::new(0),
            limit: watch::Sender::new(u64::MAX),
            rate: AtomicU64::new(0),
            next: Mutex::default(),
            open: watch::Sender::new(0),
        });
        let service = Service::start(Router::new().fallback(pass).with_state(Arc::clone(&shared)));
        Self { address: service.address.clone(), shared, _service: service }
    }

    /// Discards the record.
    pub(crate) fn clear(&self) {
        lock(&self.shared.passed).clear();
        self.shared.sent.store(0, Ordering::SeqCst);
    }

    /// Returns the requests since the last [`Gateway::clear`].
    pub(crate) fn passed(&self) -> Vec<Passed> {
        lock(&self.shared.passed).clone()
    }

    /// Returns the requests of this method whose path contains `part`.
    pub(crate) fn requests(&self, method: &Method, part: &str) -> Vec<Passed> {
        self.passed().into_iter().filter(|passed| passed.method == method && passed.is(part)).collect()
    }

    /// Returns the digests of the fetched blobs.
    pub(crate) fn fetched(&self) -> BTreeSet<String> {
        self.requests(&Method::GET, "/blobs/").iter().filter_map(Passed::digest).collect()
    }

    /// Returns the bytes of the fetched blobs.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.requests(&Method::GET, "/blobs/").iter().map(Passed::down).sum()
    }

    /// Returns the bytes of blobs that were uploaded to the registry.
    pub(crate) fn uploaded_bytes(&self) -> u64 {
        self.passed().iter().filter(|passed| passed.is("/blobs/uploads")).map(Passed::up).sum()
    }

    /// Applies a fault to every response about the blob `digest`.
    pub(crate) fn fault(&self, digest: &str, fault: Fault) {
        lock(&self.shared.faults).insert(digest.to_owned(), fault);
    }

    /// Forwards so many more bytes of response bodies, and then holds the rest, except manifests.
    pub(crate) fn hold_after(&self, bytes: u64) {
        self.shared.limit.send_replace(self.shared.sent.load(Ordering::SeqCst) + bytes);
    }

    /// Limits the rate of all response bodies together, in bytes per second.
    pub(crate) fn limit_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::SeqCst);
    }

    /// Forwards everything that is held.
    pub(crate) fn release(&self) {
        self.shared.limit.send_replace(u64::MAX);
    }

    /// Waits until no request is open: clients have read their responses or closed the connections.
    pub(crate) async fn idle(&self) {
        let mut open = self.shared.open.subscribe();
        let idle = tokio::time::timeout(Duration::from_mins(1), open.wait_for(|open| *open == 0));
        idle.await.expect("requests end within a minute").expect("the proxy runs");
    }

    /// Waits until so many bytes of response bodies were forwarded.
    pub(crate) async fn reached(&self, bytes: u64) {
        while self.shared.sent.load(Ordering::SeqCst) < bytes {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked while it held the lock")
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let open = OpenRequest::new(&shared);
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let range = parts.headers.get(header::RANGE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let passed = Passed {
        method: parts.method.clone(),
        target: target.replace("%3A", ":").replace("%3a", ":"),
        range,
        up: Arc::default(),
        down: Arc::default(),
    };
    lock(&shared.passed).push(passed.clone());
    let fault = passed.digest().and_then(|digest| lock(&shared.faults).get(&digest).copied());
    if matches!(fault, Some(Fault::Missing)) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut forwarded = shared.http.request(parts.method, format!("http://{}{target}", shared.upstream));
    if has_body(&parts.headers) {
        let up = Arc::clone(&passed.up);
        let counted = body.into_data_stream().inspect(move |piece| {
            let length = piece.as_ref().map_or(0, Bytes::len);
            up.fetch_add(length as u64, Ordering::SeqCst);
        });
        forwarded = forwarded.body(reqwest::Body::wrap_stream(counted));
    }
    match forwarded.headers(end_to_end(&parts.headers)).send().await {
        Ok(answer) => {
            let (status, headers) = (answer.status(), end_to_end(answer.headers()));
            // A closed channel keeps its last value.
            let unlimited = || watch::Sender::new(u64::MAX).subscribe();
            let limit = if passed.is("/manifests/") { unlimited() } else { shared.limit.subscribe() };
            (status, headers, answered(answer, open, passed.down, fault, limit)).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    length || headers.contains_key(header::TRANSFER_ENCODING)
}

/// Returns the headers without those of a single connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONNECTION);
    headers
}

fn answered(
    answer: reqwest::Response,
    open: OpenRequest,
    down: Arc<AtomicU64>,
    fault: Option<Fault>,
    limit: watch::Receiver<u64>,
) -> Body {
    Body::from_stream(stream::try_unfold((answer, limit, 0_u64), move |(mut answer, mut limit, passed)| {
        let (shared, down) = (Arc::clone(&open.0), Arc::clone(&down));
        async move {
            let Some(mut piece) = answer.chunk().await.map_err(io::Error::other)? else { return Ok(None) };
            if let Some(Fault::CutAfter(cut)) = fault {
                let left = usize::try_from(cut.saturating_sub(passed)).expect("small");
                if left == 0 {
                    // Gives the bytes before the cut time to arrive.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    return Err(io::Error::other("the test breaks the connection"));
                }
                piece.truncate(left);
            }
            let held = limit.wait_for(|limit| shared.sent.load(Ordering::SeqCst) < *limit).await;
            held.map_err(io::Error::other)?;
            let length = piece.len() as u64;
            shared.pace(length).await;
            shared.sent.fetch_add(length, Ordering::SeqCst);
            down.fetch_add(length, Ordering::SeqCst);
            Ok(Some((piece, (answer, limit, passed + length))))
        }
    }))
}
