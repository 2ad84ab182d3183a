//! A registry with scripted behaviour for each request, which records all requests.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::door::Door;
use crate::server::Server;
use crate::service::{Service, set, whole, whole_or_part};
use crate::stored::{self, Stored};
use crate::support::tiny_model;

/// The key of a manifest's script; the key of a blob's script is its digest.
pub(crate) const MANIFEST: &str = "manifest";
/// The media type of the manifests that Lode writes.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The registry's content: the tiny model as Lode stores it.
pub(crate) struct Content {
    pub(crate) manifest: Stored,
    pub(crate) blobs: BTreeMap<String, Bytes>,
}

impl Content {
    pub(crate) async fn tiny() -> Self {
        let server = Server::start(&[]).await;
        server.create("tiny", &tiny_model()).await;
        let manifest = stored::created(&server.home(), "tiny");
        let bytes = |digest: &String| Bytes::from(stored::blob(&server.home(), digest));
        let blobs = manifest.blobs().keys().map(|digest| (digest.clone(), bytes(digest))).collect();
        Self { manifest, blobs }
    }

    /// Returns the digest of the largest blob, an embedding of 40 KiB.
    pub(crate) fn largest(&self) -> String {
        let largest = self.blobs.iter().max_by_key(|(_, bytes)| bytes.len());
        largest.expect("a model has blobs").0.clone()
    }
}

/// The response to a request.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    Healthy,
    /// The last bit is wrong.
    WrongBytes,
    /// The connection breaks after half of the announced length.
    Short,
    /// An endless body without an announced length.
    Endless,
    /// No body, and a length of 0.
    Empty,
    /// The `Content-Range` of a partial response is wrong.
    WrongContentRange,
    /// The whole content, for any requested range.
    NoRanges,
    /// Half of the body, then nothing.
    Stall,
    /// An error with this status.
    Status(u16),
    /// 429 with a `Retry-After` of a second.
    Later,
    /// A redirect to the same URL.
    RedirectLoop,
    /// A redirect to this URL.
    Redirect(String),
    /// The correct body without a length.
    NoLength,
    /// The correct body, falsely labelled as compressed.
    CompressionLie,
    /// The correct body with a wrong `Docker-Content-Digest`.
    DigestLie,
    /// These bytes instead.
    Instead(Bytes),
}

/// The responses to the first requests, and to all later ones.
struct Script {
    first: VecDeque<Behaviour>,
    then: Behaviour,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
}

struct Shared {
    manifest: Bytes,
    digest: String,
    blobs: BTreeMap<String, Bytes>,
    /// Additional manifests and indexes by tag or digest, with their media types.
    documents: Mutex<HashMap<String, (String, Bytes)>>,
    scripts: Mutex<HashMap<String, Script>>,
    seen: Mutex<Vec<Seen>>,
    door: Mutex<Door>,
}

/// The registry; it has the model `library/tiny`.
pub(crate) struct Registry {
    pub(crate) address: String,
    shared: Arc<Shared>,
    _service: Service,
}

impl Registry {
    pub(crate) fn start(content: &Content) -> Self {
        let shared = Arc::new(Shared {
            manifest: Bytes::from(content.manifest.raw.clone()),
            digest: content.manifest.digest.clone(),
            blobs: content.blobs.clone(),
            documents: Mutex::default(),
            scripts: Mutex::default(),
            seen: Mutex::default(),
            door: Mutex::new(Door::Open),
        });
        let service = Service::start(Router::new().fallback(answer).with_state(Arc::clone(&shared)));
        Self { address: service.address.clone(), shared, _service: service }
    }

    /// Responds to requests for `key` with each of `first` in order, and then always with `then`.
    pub(crate) fn script(&self, key: &str, first: &[Behaviour], then: Behaviour) {
        let script = Script { first: first.iter().cloned().collect(), then };
        lock(&self.shared.scripts).insert(key.to_owned(), script);
    }

    /// Serves a document under a tag or digest.
    pub(crate) fn document(&self, key: &str, media_type: &str, bytes: impl Into<Bytes>) {
        lock(&self.shared.documents).insert(key.to_owned(), (media_type.to_owned(), bytes.into()));
    }

    /// Serves another manifest under the tag.
    pub(crate) fn manifest(&self, json: &Value) {
        self.document("latest", MANIFEST_TYPE, json.to_string());
    }

    /// Requires authentication.
    pub(crate) fn guard(&self, door: Door) {
        *lock(&self.shared.door) = door;
    }

    /// Removes all scripts, documents and the authentication, and clears the record.
    pub(crate) fn heal(&self) {
        lock(&self.shared.scripts).clear();
        lock(&self.shared.documents).clear();
        lock(&self.shared.seen).clear();
        self.guard(Door::Open);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Returns the digests of the requested blobs.
    pub(crate) fn asked(&self) -> BTreeSet<String> {
        let seen = self.seen();
        let digests = seen.iter().filter_map(|seen| seen.path.split_once("/blobs/"));
        digests.map(|(_, digest)| digest.to_owned()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panicked with it in hand")
}

impl Shared {
    fn behaviour(&self, key: &str) -> Behaviour {
        let mut scripts = lock(&self.scripts);
        let Some(script) = scripts.get_mut(key) else { return Behaviour::Healthy };
        script.first.pop_front().unwrap_or_else(|| script.then.clone())
    }

    fn manifest(&self, reference: &str) -> Option<(String, Bytes)> {
        let other = lock(&self.documents).get(reference).cloned();
        let own = ["latest", self.digest.as_str()].contains(&reference);
        other.or_else(|| own.then(|| (MANIFEST_TYPE.to_owned(), self.manifest.clone())))
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().replace("%3A", ":");
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let authorization = text(header::AUTHORIZATION);
    lock(&shared.seen).push(Seen { path: path.clone(), authorization: authorization.clone() });
    let host = text(header::HOST).unwrap_or_default();
    if let Some(answer) = lock(&shared.door).answer(&host, &path, authorization.as_deref()) {
        return answer;
    }
    let range = text(header::RANGE);
    if let Some((_, reference)) = path.split_once("/manifests/") {
        let Some((media_type, bytes)) = shared.manifest(reference) else { return unknown("MANIFEST_UNKNOWN") };
        return serve(shared.behaviour(MANIFEST), &path, &media_type, bytes, None);
    }
    if let Some((_, digest)) = path.split_once("/blobs/") {
        let Some(bytes) = shared.blobs.get(digest).cloned() else { return unknown("BLOB_UNKNOWN") };
        return serve(shared.behaviour(digest), &path, "application/octet-stream", bytes, range.as_deref());
    }
    // An endless list of tags: no pull needs it.
    if path.ends_with("/tags/list") {
        return endless();
    }
    if path == "/v2/" { Json::ok() } else { unknown("NAME_UNKNOWN") }
}

/// JSON responses.
struct Json;

impl Json {
    fn ok() -> Response {
        axum::Json(json!({})).into_response()
    }

    fn error(status: StatusCode, code: &str) -> Response {
        (status, axum::Json(json!({"errors": [{"code": code, "message": "as the test wants it"}]}))).into_response()
    }
}

fn unknown(code: &str) -> Response {
    Json::error(StatusCode::NOT_FOUND, code)
}

/// Returns an endless body of zeros.
pub(crate) fn endless() -> Response {
    let piece = Bytes::from(vec![0; 1 << 16]);
    Body::from_stream(stream::repeat_with(move || Ok::<_, io::Error>(piece.clone()))).into_response()
}

fn serve(behaviour: Behaviour, path: &str, media_type: &str, bytes: Bytes, range: Option<&str>) -> Response {
    let mut answer = match behaviour {
        Behaviour::Healthy => whole_or_part(bytes, range),
        Behaviour::WrongBytes => whole_or_part(with_a_wrong_bit(&bytes), range),
        Behaviour::Short => broken(whole_or_part(bytes, range), stream::once(cut())),
        Behaviour::Stall => broken(whole_or_part(bytes, range), stream::pending()),
        Behaviour::Endless => endless(),
        Behaviour::Empty => whole(Bytes::new()),
        Behaviour::WrongContentRange => elsewhere(whole_or_part(bytes, range)),
        Behaviour::NoRanges => whole(bytes),
        Behaviour::Status(status) => return Json::error(StatusCode::from_u16(status).expect("a status"), "UNKNOWN"),
        Behaviour::Later => {
            let mut answer = Json::error(StatusCode::TOO_MANY_REQUESTS, "TOOMANYREQUESTS");
            set(answer.headers_mut(), header::RETRY_AFTER, "1");
            return answer;
        }
        Behaviour::RedirectLoop => return redirect(path),
        Behaviour::Redirect(url) => return redirect(&url),
        Behaviour::NoLength => Body::from_stream(stream::iter([Ok::<_, io::Error>(bytes)])).into_response(),
        Behaviour::CompressionLie => {
            let mut answer = whole_or_part(bytes, range);
            set(answer.headers_mut(), header::CONTENT_ENCODING, "gzip");
            answer
        }
        Behaviour::DigestLie => {
            let mut answer = whole_or_part(bytes, range);
            let digest = content::Digest::of(b"something else").to_string();
            set(answer.headers_mut(), header::HeaderName::from_static("docker-content-digest"), &digest);
            answer
        }
        Behaviour::Instead(bytes) => whole(bytes),
    };
    set(answer.headers_mut(), header::CONTENT_TYPE, media_type);
    answer
}

fn redirect(to: &str) -> Response {
    let mut answer = StatusCode::TEMPORARY_REDIRECT.into_response();
    set(answer.headers_mut(), header::LOCATION, to);
    answer
}

fn with_a_wrong_bit(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    bytes.into()
}

/// Breaks the connection, after giving the bytes before it time to arrive.
async fn cut() -> io::Result<Bytes> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    Err(io::Error::other("the test breaks the connection"))
}

/// Returns the response with half of its body, followed by `then`.
fn broken<S>(answer: Response, then: S) -> Response
where
    S: stream::Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    let (parts, body) = answer.into_parts();
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut left: usize = announced.unwrap_or(0) / 2;
    let half = body.into_data_stream().map(move |piece| {
        let mut piece = piece.map_err(io::Error::other)?;
        piece.truncate(left);
        left -= piece.len();
        Ok(piece)
    });
    Response::from_parts(parts, Body::from_stream(half.chain(then)))
}

/// Changes the first offset in `Content-Range` to a wrong one.
fn elsewhere(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    if let Some(range) = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok()) {
        let wrong = range.replacen("bytes ", "bytes 1", 1);
        set(headers, header::CONTENT_RANGE, &wrong);
    }
    answer
}
