//! The server: the OCI distribution specification 1.1 on `/v2/`.
//!
//! ```text
//! request ──▶ route ──▶ access ──▶ blobs │ uploads │ manifests │ lists ──▶ storage
//! ```
//! The server keeps only open uploads in memory. It requests everything else from the [`Storage`]
//! each time, so several servers may share one storage.

pub mod access;
mod blobs;
mod lists;
mod manifests;
mod quota;
mod range;
pub mod refusal;
mod route;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod sessions;
pub mod storage;
mod sync;
mod uploads;
mod windows;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};

pub use blobs::names_tag;
pub use refusal::ErrorReply;
pub use sessions::UPLOAD_PREFIX;
pub use storage::{
    BlobStorage, BlobStream, Listed, Lookup, ManifestStorage, NewManifest, Page, Reference, Removal, Repository,
    Storage,
};
pub use windows::windows;

use crate::ErrorCode;
use access::{Access, Action, TOKEN_PATH};
use quota::UploadScope;
use route::{Object, Route};
use sessions::Sessions;

/// The header with the digest of the response's content.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// The header by which clients recognize a registry.
const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// A registry server over a storage.
#[derive(Debug)]
pub struct Server<S: Storage> {
    storage: S,
    access: Access,
    /// The scheme by which clients reach the server, `http` or `https`. It is used in the URL of
    /// the token service.
    scheme: &'static str,
    completeness: Completeness,
    redirects: Redirects,
    sessions: Sessions<S::Ingest>,
}

/// Which clients are sent to the storage for large blobs, if the storage has links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// None: the server sends all bytes.
    Never,
    /// All except those whose `User-Agent` begins with one of these texts.
    Except(Vec<String>),
}

/// Which images are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completeness {
    /// Only images whose config and layers are in their repository, so that a pull gets all of the
    /// image.
    #[default]
    Whole,
    /// Also incomplete images, for mirrors of parts of images.
    Sparse,
}

impl<S: Storage> Server<S> {
    /// Serves the content of `storage` over `scheme` (`http` or `https`), to clients that `access`
    /// admits.
    pub fn new(storage: S, access: Access, scheme: &'static str, completeness: Completeness) -> Arc<Self> {
        let sessions = Sessions::new(UploadScope::Process);
        Arc::new(Self { storage, access, scheme, completeness, redirects: Redirects::Never, sessions })
    }

    /// [`Server::new`] for one of several processes that serve the same storage. Any of them may
    /// receive the next request of an upload.
    pub fn replica(
        storage: S,
        access: Access,
        scheme: &'static str,
        completeness: Completeness,
        redirects: Redirects,
    ) -> Arc<Self> {
        let sessions = Sessions::new(UploadScope::Replicas);
        Arc::new(Self { storage, access, scheme, completeness, redirects, sessions })
    }

    /// Closes uploads without recent requests. Their bytes stay, to be resumed or pruned. Call this
    /// regularly.
    pub fn close_idle_uploads(&self) {
        self.sessions.close_idle();
    }

    /// The routes, `/v2` and everything below it.
    pub fn router<T: Clone + Send + Sync + 'static>(self: Arc<Self>) -> Router<T> {
        Router::new()
            .route("/v2", any(handle::<S>))
            .route("/v2/", any(handle::<S>))
            .route("/v2/{*rest}", any(handle::<S>))
            .with_state(self)
    }
}

/// The base URL of the server from the view of the client; `scheme` is `http` or `https`. Behind a
/// TLS proxy it is `https`, because a password must not be requested without TLS.
pub fn base_url(scheme: &str, headers: &HeaderMap) -> String {
    let is_forwarded =
        headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let scheme = if is_forwarded { "https" } else { scheme };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
    format!("{scheme}://{host}")
}

/// A request extension: the request must be answered from this store alone, because the client may
/// not trigger an upstream fetch.
#[derive(Clone, Copy, Debug)]
pub struct OnlyHere;

async fn handle<S: Storage>(State(server): State<Arc<Server<S>>>, request: Request) -> Response {
    let mut response = answer(&server, request).await.unwrap_or_else(|response| response);
    response.headers_mut().insert(VERSION, uploads::value("registry/2.0"));
    response
}

/// Access is checked before anything is looked up, so that a client without access learns nothing.
async fn answer<S: Storage>(server: &Arc<Server<S>>, request: Request) -> Result<Response, Response> {
    let (parts, body) = request.into_parts();
    if parts.uri.path() == TOKEN_PATH && parts.method == Method::GET {
        return Ok(server.access.token(&parts.headers, parts.uri.query().unwrap_or_default()).await);
    }
    let mut found = route::parse(&parts.uri).map_err(IntoResponse::into_response)?;
    if let Some(Route::In(repository, _)) = &mut found {
        repository.mirrored =
            parts.headers.contains_key(crate::MIRRORED) || parts.extensions.get::<OnlyHere>().is_some();
        // A mirror is read-only. A token for a local name is no permission for the same name
        // elsewhere.
        if repository.namespace.is_some() && !is_read(&parts.method) {
            let refused = ErrorReply::new(
                ErrorCode::Unsupported,
                "requests with `ns` are read-only: this server is a mirror for them",
            );
            return Err(refused.into_response());
        }
    }
    if let Some(found) = &found {
        server.admit(found, &parts).await.map_err(IntoResponse::into_response)?;
    }
    serve(server, found, &parts, body).await.map_err(IntoResponse::into_response)
}

impl<S: Storage> Server<S> {
    /// Checks whether the client may make this request.
    async fn admit(&self, route: &Route, parts: &Parts) -> Result<(), access::Refusal> {
        let base = self.base(&parts.headers);
        let (repository, object) = match route {
            Route::Base | Route::Catalog => {
                return self.access.check(&parts.headers, &base, None, Action::Pull).await.map(drop);
            }
            Route::In(repository, object) => (&repository.name, object),
        };
        let action = match (&parts.method, object) {
            (method, Object::Blob(text)) if is_read(method) => {
                if let Ok(digest) = text.parse() {
                    let query = parts.uri.query();
                    let checked = self.access.check_blob(&parts.headers, &base, repository, &digest, query).await;
                    return checked.map(drop);
                }
                Action::Pull
            }
            (_, Object::Uploads | Object::Upload(_)) => Action::Push,
            (method, _) if is_read(method) => Action::Pull,
            (&Method::DELETE, _) => Action::Delete,
            _ => Action::Push,
        };
        self.access.check(&parts.headers, &base, Some(repository), action).await.map(drop)
    }

    fn base(&self, headers: &HeaderMap) -> String {
        base_url(self.scheme, headers)
    }

    /// Whether the client may mount a blob from another repository. Without a named repository, the
    /// blob may be in any of them, so every repository must be readable without a login.
    async fn may_mount(&self, headers: &HeaderMap, from: Option<&Repository>) -> bool {
        match from {
            None => self.access.anyone_may_pull(),
            Some(from) => self.access.check(headers, &self.base(headers), Some(&from.name), Action::Pull).await.is_ok(),
        }
    }
}

async fn serve<S: Storage>(
    server: &Arc<Server<S>>,
    found: Option<Route>,
    parts: &Parts,
    body: axum::body::Body,
) -> Result<Response, ErrorReply> {
    let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
    let Some(found) = found else {
        let message = format!("`{}` is not served here", uri.path());
        return Err(ErrorReply::with_status(StatusCode::NOT_FOUND, ErrorCode::Unsupported, message));
    };
    let (repository, object) = match found {
        Route::Base if is_read(method) => return Ok(Json(serde_json::json!({})).into_response()),
        Route::Catalog if is_read(method) => return lists::catalog(server, uri).await,
        Route::Base | Route::Catalog => return Err(not_allowed(method)),
        Route::In(repository, object) => (repository, object),
    };
    match (method.as_str(), object) {
        ("GET" | "HEAD", Object::Blob(text)) => blobs::get(server, &repository, &uploads::digest(&text)?, parts).await,
        ("DELETE", Object::Blob(text)) => blobs::delete(server, &repository, &uploads::digest(&text)?).await,
        ("POST", Object::Uploads) => uploads::post(server, &repository, parts, body).await,
        ("GET" | "HEAD", Object::Upload(id)) => uploads::status(server, &repository, &id).await,
        ("PATCH", Object::Upload(id)) => uploads::patch(server, &repository, &id, parts, body).await,
        ("PUT", Object::Upload(id)) => uploads::put(server, &repository, &id, parts, body).await,
        ("DELETE", Object::Upload(id)) => uploads::cancel(server, &repository, &id).await,
        ("GET" | "HEAD", Object::Manifest(at)) => manifests::get(server, &repository, &at, method, headers).await,
        ("PUT", Object::Manifest(at)) => manifests::put(server, &repository, &at, uri, headers, body).await,
        ("DELETE", Object::Manifest(at)) => manifests::delete(server, &repository, &at).await,
        ("GET" | "HEAD", Object::Tags) => lists::tags(server, &repository, uri).await,
        ("GET" | "HEAD", Object::Referrers(text)) => {
            manifests::referrers(server, &repository, &uploads::digest(&text)?, uri).await
        }
        _ => Err(not_allowed(method)),
    }
}

fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

fn not_allowed(method: &Method) -> ErrorReply {
    ErrorReply::new(ErrorCode::Unsupported, format!("`{method}` is not for this path"))
}
