//! Fuzzes the registry's routes over a storage in memory. No request causes a server error,
//! refusals have a reason, and the bytes of a response match the request.
//!
//! An input is a list of requests, separated by lines of `====`. A request is a line with method
//! and path, header lines, an empty line and the body. A path that begins with `@` continues from
//! the `Location` of the last response that had one.
#![no_main]

use std::ops::Range;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use content::{Digest, Provider};
use lode_fuzz::Shelf;
use registry::code::ErrorBody;
use registry::server::access::Access;
use registry::server::{Completeness, Server, ServerOptions};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// The most requests of an input that are sent.
const MOST: usize = 16;
/// A limit above every response's length: response bodies consist of parts of the input.
const LONGEST: usize = 8 << 20;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    RUNTIME.with(|runtime| runtime.block_on(serve(bytes)));
});

async fn serve(bytes: &[u8]) {
    let shelf = Shelf::default();
    let completeness = if bytes.len() % 2 == 0 { Completeness::Whole } else { Completeness::Sparse };
    let router: Router = Server::new(shelf.clone(), Access::open(), ServerOptions { completeness, ..ServerOptions::default() }).router();
    let mut location = String::new();
    for part in lode_fuzz::parts(bytes).into_iter().take(MOST) {
        let Some(request) = request(part, &location) else { continue };
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = router.clone().oneshot(request).await.expect("the router answers everything");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, LONGEST).await.expect("a body without errors");
        assert!(!parts.status.is_server_error(), "{method} {path}: {} {body:?}", parts.status);
        if path.starts_with("/v2/") {
            assert!(parts.headers.contains_key("docker-distribution-api-version"), "{method} {path}");
            check_refusal(&method, parts.status, &body);
            check_content(&shelf, parts.status, &parts.headers, &body, &method).await;
        }
        if let Some(value) = parts.headers.get(header::LOCATION) {
            let text = value.to_str().expect("a location is text");
            let (place, _) = text.split_once('?').unwrap_or((text, ""));
            assert!(place.starts_with("/v2/") && !place.contains(".."), "it leads to `{text}`");
            text.clone_into(&mut location);
        }
    }
}

/// Parses a request of an input. Returns `None` if no client could send it.
fn request(text: &[u8], location: &str) -> Option<Request<Body>> {
    let (head, body) = match text.windows(2).position(|window| window == b"\n\n") {
        Some(at) => (&text[..at], &text[at + 2..]),
        None => (text, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let (method, path) = std::str::from_utf8(lines.next()?).ok()?.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let path = path.strip_prefix('@').map_or_else(|| path.to_owned(), |rest| format!("{location}{rest}"));
    let mut request = Request::builder().method(method).uri(path);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    request.body(Body::from(body.to_vec())).ok()
}

fn check_refusal(method: &Method, status: StatusCode, body: &[u8]) {
    if !status.is_client_error() || method == Method::HEAD {
        return;
    }
    let refusal: ErrorBody = serde_json::from_slice(body).expect("a refusal is JSON");
    assert!(!refusal.errors.is_empty());
    assert!(refusal.errors.iter().all(|entry| !entry.code.is_empty() && !entry.message.is_empty()), "{refusal:?}");
}

/// Compares a blob, a range of one or a manifest in a response with the storage's content.
async fn check_content(shelf: &Shelf, status: StatusCode, headers: &HeaderMap, body: &Bytes, method: &Method) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(digest) = text("docker-content-digest").and_then(|text| text.parse::<Digest>().ok()) else { return };
    if method != Method::GET || !(status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT) {
        return;
    }
    let blob = shelf.stat(&digest).await.expect("memory").expect("what is sent is there");
    let range = match status {
        StatusCode::PARTIAL_CONTENT => part(text("content-range").expect("a part says which"), blob.size),
        _ => 0..blob.size,
    };
    assert_eq!(*body, shelf.read(&blob, range).await.expect("it is there"));
    assert_eq!(text("content-length"), Some(body.len().to_string().as_str()));
}

/// Parses `bytes FIRST-LAST/SIZE`.
fn part(text: &str, size: u64) -> Range<u64> {
    let (range, whole) = text.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')).expect("a range of bytes");
    let (first, last) = range.split_once('-').expect("two numbers");
    let (first, last): (u64, u64) = (first.parse().expect("a number"), last.parse().expect("a number"));
    assert!(first <= last && last < size && whole == size.to_string(), "`{text}` of {size}");
    first..last + 1
}
