//! The ways to upload a blob, each checked on its way: statuses, `Location`, `Range`, the digest's header.

use reqwest::{Method, RequestBuilder, Url};

use super::client::{Blob, Registry, Reply, reply, with_query};

/// The smallest chunk: registries may ask for larger ones.
const CHUNK: usize = 1024;

/// How a blob is uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One POST with the digest and the bytes.
    PostOnly,
    /// POST for a session, PUT with the bytes.
    PostPut,
    /// PATCH without a range, PUT without bytes.
    Stream,
    /// PATCH with ranges.
    Chunked(LastChunk, Order),
}

/// Which request has the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastChunk {
    InPatch,
    InPut,
}

/// Whether each chunk is tried at a wrong place first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Right,
    WrongFirst,
}

impl Way {
    /// Those that any blob can be uploaded with.
    pub(super) const ALL: [Self; 4] =
        [Self::PostPut, Self::PostOnly, Self::Stream, Self::Chunked(LastChunk::InPatch, Order::Right)];
}

/// Uploads a blob and reads it back from where the registry says it is.
pub(super) async fn push(registry: &Registry, repository: &str, blob: &Blob, way: Way) {
    let done = attempt(registry, repository, blob, way).await;
    created(registry, done, blob).await;
}

/// Uploads a blob whose digest is wrong: the last request is refused, and the blob is not there.
pub(super) async fn refused(registry: &Registry, repository: &str, blob: &Blob, way: Way) {
    attempt(registry, repository, blob, way).await.is(400).refuses(&["DIGEST_INVALID"]);
    registry.head(&format!("/v2/{repository}/blobs/{}", blob.digest)).await.is(404);
}

/// Checks the answer to a completed upload.
pub(super) async fn created(registry: &Registry, done: Reply, blob: &Blob) {
    let done = done.is(201).has("Docker-Content-Digest", &blob.digest.to_string());
    reply(registry.ask_at(Method::GET, &done.location())).await.is(200).holds(&blob.bytes);
}

/// Opens a session; where to go on.
pub(super) async fn begin(registry: &Registry, repository: &str) -> Url {
    registry.post(&format!("/v2/{repository}/blobs/uploads/")).await.is(202).location()
}

/// The last answer of an upload.
pub(super) async fn attempt(registry: &Registry, repository: &str, blob: &Blob, way: Way) -> Reply {
    match way {
        Way::PostOnly => {
            let path = format!("/v2/{repository}/blobs/uploads/?digest={}", blob.digest);
            reply(body(registry.ask(Method::POST, &path), &blob.bytes)).await
        }
        Way::PostPut => {
            let place = begin(registry, repository).await;
            reply(body(finish(registry, &place, blob), &blob.bytes)).await
        }
        Way::Stream => {
            let place = begin(registry, repository).await;
            let patched = reply(body(registry.ask_at(Method::PATCH, &place), &blob.bytes)).await.is(202);
            reply(body(finish(registry, &patched.location(), blob), b"")).await
        }
        Way::Chunked(last, order) => chunked(registry, repository, blob, last, order).await,
    }
}

/// A PUT that ends a session.
pub(super) fn finish(registry: &Registry, place: &Url, blob: &Blob) -> RequestBuilder {
    registry.ask_at(Method::PUT, &with_query(place.clone(), "digest", &blob.digest.to_string()))
}

/// A request with bytes.
pub(super) fn body(request: RequestBuilder, bytes: &[u8]) -> RequestBuilder {
    request.header("Content-Type", "application/octet-stream").body(bytes.to_vec())
}

/// A request with the bytes `begin..end` of a blob, and where they belong.
pub(super) fn chunk(request: RequestBuilder, blob: &Blob, begin: usize, end: usize) -> RequestBuilder {
    let range = format!("{begin}-{}", end.saturating_sub(1));
    body(request, &blob.bytes[begin..end]).header("Content-Range", range)
}

/// The state of a session: the number of bytes that are there, and where to go on.
pub(super) async fn state(registry: &Registry, place: &Url) -> (usize, Url) {
    let state = reply(registry.ask_at(Method::GET, place)).await.is(204);
    let range = state.header("Range");
    let last = range.strip_prefix("0-").and_then(|text| text.parse::<usize>().ok());
    let last = last.unwrap_or_else(|| panic!("{state}: Range {range:?}, expected `0-LAST`"));
    // No byte and one byte are written the same.
    (if last == 0 { 0 } else { last + 1 }, state.location())
}

async fn chunked(registry: &Registry, repository: &str, blob: &Blob, last: LastChunk, order: Order) -> Reply {
    let opened = registry.post(&format!("/v2/{repository}/blobs/uploads/")).await.is(202);
    let least = opened.find("OCI-Chunk-Min-Length").map_or(0, |text| text.parse().expect("a number of bytes"));
    let size = (blob.bytes.len() / 3 + 1).max(CHUNK).max(least).min(blob.bytes.len());
    let mut place = opened.location();
    let mut done = 0;
    while done < blob.bytes.len() {
        let end = (done + size).min(blob.bytes.len());
        let in_put = last == LastChunk::InPut && end == blob.bytes.len();
        if order == Order::WrongFirst {
            place = misplaced(registry, &place, blob, (done, size), last).await;
        }
        if in_put {
            return reply(chunk(finish(registry, &place, blob), blob, done, end)).await;
        }
        let patched = reply(chunk(registry.ask_at(Method::PATCH, &place), blob, done, end)).await.is(202);
        let patched = patched.has("Range", &format!("0-{}", end - 1));
        place = patched.location();
        done = end;
    }
    reply(body(finish(registry, &place, blob), b"")).await
}

/// Sends a chunk that is not the next one, by PATCH or, where it has the end, by PUT. The session must refuse it and
/// know where it is.
async fn misplaced(
    registry: &Registry,
    place: &Url,
    blob: &Blob,
    (done, size): (usize, usize),
    last: LastChunk,
) -> Url {
    let begin = if done + size < blob.bytes.len() { done + size } else { 0 };
    let end = (begin + size).min(blob.bytes.len());
    let request = if last == LastChunk::InPut && end == blob.bytes.len() {
        finish(registry, place, blob)
    } else {
        registry.ask_at(Method::PATCH, place)
    };
    reply(chunk(request, blob, begin, end)).await.is(416);
    let (there, place) = state(registry, place).await;
    assert_eq!(there, done, "bytes of the session at {place}");
    place
}
