//! The ways to upload a blob. Each checks every step: status, `Location`, `Range` and the digest
//! header.

use reqwest::{Method, RequestBuilder, Url};

use super::client::{Blob, Registry, Reply, reply, with_query};

/// The smallest chunk in bytes; registries may require larger ones.
const CHUNK: usize = 1024;

/// A way to upload a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One POST with the digest and the bytes.
    PostOnly,
    /// A POST for a session, and a PUT with the bytes.
    PostPut,
    /// A PATCH without a range, and a PUT without bytes.
    Stream,
    /// Several PATCH requests with ranges.
    Chunked(LastChunk, Order),
}

/// The request that sends the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastChunk {
    InPatch,
    InPut,
}

/// Whether each chunk is first sent at a wrong offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Right,
    WrongFirst,
}

impl Way {
    /// The ways that suit any blob.
    pub(super) const ALL: [Self; 4] =
        [Self::PostPut, Self::PostOnly, Self::Stream, Self::Chunked(LastChunk::InPatch, Order::Right)];
}

/// Uploads a blob and reads it back from the returned `Location`.
pub(super) async fn push(registry: &Registry, repository: &str, blob: &Blob, way: Way) {
    let done = attempt(registry, repository, blob, way).await;
    created(registry, done, blob).await;
}

/// Uploads a blob with a wrong digest. Asserts that the last request is refused and the blob is not
/// stored.
pub(super) async fn refused(registry: &Registry, repository: &str, blob: &Blob, way: Way) {
    attempt(registry, repository, blob, way).await.is(400).refuses(&["DIGEST_INVALID"]);
    registry.head(&format!("/v2/{repository}/blobs/{}", blob.digest)).await.is(404);
}

/// Checks the reply to a completed upload.
pub(super) async fn created(registry: &Registry, done: Reply, blob: &Blob) {
    let done = done.is(201).has("Docker-Content-Digest", &blob.digest.to_string());
    reply(registry.ask_at(Method::GET, &done.location())).await.is(200).holds(&blob.bytes);
}

/// Opens a session and returns its `Location`.
pub(super) async fn begin(registry: &Registry, repository: &str) -> Url {
    registry.post(&format!("/v2/{repository}/blobs/uploads/")).await.is(202).location()
}

/// Uploads a blob and returns the last reply.
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

/// Returns a PUT that ends a session.
pub(super) fn finish(registry: &Registry, place: &Url, blob: &Blob) -> RequestBuilder {
    registry.ask_at(Method::PUT, &with_query(place.clone(), "digest", &blob.digest.to_string()))
}

/// Adds bytes as the body of a request.
pub(super) fn body(request: RequestBuilder, bytes: &[u8]) -> RequestBuilder {
    request.header("Content-Type", "application/octet-stream").body(bytes.to_vec())
}

/// Adds the bytes `begin..end` of a blob as the body of a request, with their `Content-Range`.
pub(super) fn chunk(request: RequestBuilder, blob: &Blob, begin: usize, end: usize) -> RequestBuilder {
    let range = format!("{begin}-{}", end.saturating_sub(1));
    body(request, &blob.bytes[begin..end]).header("Content-Range", range)
}

/// Returns the state of a session: the number of bytes received, and its current `Location`.
pub(super) async fn state(registry: &Registry, place: &Url) -> (usize, Url) {
    let state = reply(registry.ask_at(Method::GET, place)).await.is(204);
    let range = state.header("Range");
    let last = range.strip_prefix("0-").and_then(|text| text.parse::<usize>().ok());
    let last = last.unwrap_or_else(|| panic!("{state}: Range {range:?}, expected `0-LAST`"));
    // The protocol writes both zero bytes and one byte as `0-0`.
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

/// Sends a chunk at a wrong offset, with PATCH or, if it contains the end, with PUT. Asserts that
/// the session refuses it and still reports its offset.
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
