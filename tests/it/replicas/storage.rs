//! A small S3 in this process that fails as a test requires. It has no multipart uploads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use content::Digest;

/// The behaviour of the storage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    None,
    /// Writes ignore their conditions.
    IgnoresConditions,
    /// The credentials have expired.
    Expired,
    /// So many requests fail with 503.
    Unavailable {
        left: usize,
    },
    /// Every request takes this long.
    Slow(Duration),
    /// Bytes of blobs change on their way.
    Corrupts,
    /// Bytes of a tier's blobs change when they are read.
    CorruptsReads,
}

struct Content {
    objects: BTreeMap<String, (Bytes, String)>,
    fault: Fault,
    version: u64,
}

type Shared = Arc<Mutex<Content>>;

/// A storage with all buckets.
pub(crate) struct HostileStorage {
    address: String,
    shared: Shared,
}

fn lock(shared: &Shared) -> MutexGuard<'_, Content> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostileStorage {
    pub(crate) async fn start() -> Self {
        let content = Content { objects: BTreeMap::new(), fault: Fault::None, version: 0 };
        let shared: Shared = Arc::new(Mutex::new(content));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let routes = Router::new().fallback(answer).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, shared }
    }

    pub(crate) fn set(&self, fault: Fault) {
        lock(&self.shared).fault = fault;
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let own = [
            ("AWS_ACCESS_KEY_ID", "lode"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &format!("http://{}", self.address)),
        ];
        own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

fn error(status: StatusCode, code: &str) -> Response {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a fault of the test</Message></Error>");
    (status, body).into_response()
}

async fn answer(State(shared): State<Shared>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let fault = {
        let mut content = lock(&shared);
        match content.fault {
            Fault::Unavailable { left: 0 } => Fault::None,
            Fault::Unavailable { left } => {
                content.fault = Fault::Unavailable { left: left - 1 };
                return error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown");
            }
            other => other,
        }
    };
    match fault {
        Fault::Expired => return error(StatusCode::FORBIDDEN, "ExpiredToken"),
        Fault::Slow(time) => tokio::time::sleep(time).await,
        _ => {}
    }
    let mut content = lock(&shared);
    let query = uri.query().unwrap_or_default();
    match method {
        Method::PUT => put(&mut content, uri.path(), &headers, &body),
        Method::GET if query.contains("list-type=2") => list(&content, query),
        Method::GET | Method::HEAD => get(&content, uri.path(), &headers, &method),
        Method::POST => delete(&mut content, uri.path(), &body),
        Method::DELETE => {
            content.objects.remove(uri.path());
            StatusCode::NO_CONTENT.into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn put(content: &mut Content, key: &str, headers: &HeaderMap, body: &Bytes) -> Response {
    let mut body = body.to_vec();
    if let (Fault::Corrupts, true, Some(first)) = (content.fault, key.contains("/data/"), body.first_mut()) {
        *first ^= 1;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let sum = STANDARD.encode(Digest::of(&body).as_bytes());
    if text("x-amz-checksum-sha256").is_some_and(|announced| announced != sum) {
        return error(StatusCode::BAD_REQUEST, "BadDigest");
    }
    let now = content.objects.get(key).map(|(_, version)| version.as_str());
    let is_met = match (text("if-none-match"), text("if-match")) {
        (Some(_), _) => now.is_none(),
        (_, Some(version)) => now == Some(version),
        _ => true,
    };
    if !is_met && !matches!(content.fault, Fault::IgnoresConditions) {
        return error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
    }
    content.version += 1;
    let version = format!("\"{}\"", content.version);
    content.objects.insert(key.to_owned(), (body.into(), version.clone()));
    (StatusCode::OK, [("ETag", version)]).into_response()
}

fn get(content: &Content, key: &str, headers: &HeaderMap, method: &Method) -> Response {
    let Some((bytes, version)) = content.objects.get(key) else { return error(StatusCode::NOT_FOUND, "NoSuchKey") };
    let mut bytes = bytes.clone();
    if matches!(content.fault, Fault::CorruptsReads) && key.contains("/tier/blobs/") {
        let mut wrong = bytes.to_vec();
        wrong.last_mut().into_iter().for_each(|last| *last ^= 1);
        bytes = wrong.into();
    }
    let facts = [("ETag", version.clone()), ("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT".to_owned())];
    if method == Method::HEAD {
        return (StatusCode::OK, facts, [("Content-Length", bytes.len().to_string())]).into_response();
    }
    let range = headers.get("range").and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = range else { return (StatusCode::OK, facts, bytes).into_response() };
    let first: usize = first.parse().expect("a number");
    let end = last.parse::<usize>().expect("a number").saturating_add(1).min(bytes.len());
    let shown = format!("bytes {first}-{}/{}", end - 1, bytes.len());
    (StatusCode::PARTIAL_CONTENT, facts, [("Content-Range", shown)], bytes.slice(first..end)).into_response()
}

/// Lists all objects with the prefix.
fn list(content: &Content, query: &str) -> Response {
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default().replace("%2F", "/");
    let mut body = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (path, (bytes, version)) in &content.objects {
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        if key.starts_with(&prefix) {
            let _ = write!(
                body,
                "<Contents><Key>{key}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified><ETag>{version}</ETag>\
                 <Size>{}</Size></Contents>",
                bytes.len()
            );
        }
    }
    (StatusCode::OK, body + "</ListBucketResult>").into_response()
}

/// Deletes several objects of the bucket in the path.
fn delete(content: &mut Content, bucket: &str, body: &Bytes) -> Response {
    let text = String::from_utf8_lossy(body);
    let mut deleted = String::new();
    for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
        content.objects.remove(&format!("{}/{key}", bucket.trim_end_matches('/')));
        let _ = write!(deleted, "<Deleted><Key>{key}</Key></Deleted>");
    }
    (StatusCode::OK, format!("<?xml version=\"1.0\"?><DeleteResult>{deleted}</DeleteResult>")).into_response()
}
