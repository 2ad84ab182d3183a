//! The server: the OCI distribution specification 1.1 on `/v2/`.
//!
//! ```text
//! request ──▶ route ──▶ access ──▶ blobs │ uploads │ manifests │ lists ──▶ storage
//! ```
//! The server keeps only open uploads in memory. It requests everything else from the [`Storage`]
//! each time, so several servers may share one storage.

pub mod access;
mod blobs;
mod copied;
pub mod journal;
mod lists;
mod manifests;
mod quota;
mod range;
pub mod refusal;
pub mod retention;
mod route;
mod rules;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod sessions;
pub mod storage;
mod sync;
mod uploads;
mod usage;
mod windows;

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use tracing::Instrument;

pub use blobs::names_tag;
pub use copied::{CopiedFrom, CopiedRegistries};
pub use journal::{Cause, Journal, JournalEntry, NoJournal, Operation, record_unserved};
pub use manifests::required_blobs;
pub use refusal::ErrorReply;
pub use rules::{KeptTags, NamePattern, RepositoryRule, RepositoryRules, Retention, matches_repository};
pub use sessions::UPLOAD_PREFIX;
pub use storage::{
    BlobStorage, BlobStream, Listed, ListedManifest, ListedTag, Lookup, ManifestStorage, NewManifest, NewTag, Page,
    Pulls, Reference, Removal, Repository, RepositoryUpkeep, Storage, TagChange,
};
pub use windows::windows;

use crate::ErrorCode;
use access::{Access, Action, Identity, TOKEN_PATH};
use journal::OpenEntry;
use quota::UploadScope;
use route::{Object, Route};
use sessions::Sessions;
use sync::{finished, spawn};
use usage::KnownSizes;

/// The header with the digest of the response's content.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// The header by which clients recognize a registry.
const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// A registry server over a storage.
pub struct Server<S: Storage> {
    storage: S,
    access: Access,
    options: ServerOptions,
    sessions: Sessions<S::Ingest>,
    recorded_pulls: RecordedPulls,
    known_sizes: KnownSizes,
}

impl<S: Storage> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("access", &self.access).finish_non_exhaustive()
    }
}

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The scheme by which clients reach the server, `http` or `https`. It is used in the URL of
    /// the token service. The default is `http`.
    pub scheme: &'static str,
    /// Which images are accepted.
    pub completeness: Completeness,
    /// Which clients read large blobs from the storage itself. The default is none.
    pub redirects: Redirects,
    /// The rules of repositories. By default there are none.
    pub rules: Arc<RepositoryRules>,
    /// Registries whose repositories the storage copies. By default there are none.
    pub copied: Arc<CopiedRegistries>,
    /// Gets an entry for each request and for each change by rules. The default keeps nothing.
    pub journal: Arc<dyn Journal>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            scheme: "http",
            completeness: Completeness::Whole,
            redirects: Redirects::Never,
            rules: Arc::default(),
            copied: Arc::default(),
            journal: Arc::new(NoJournal),
        }
    }
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

/// Which pulls are recorded for retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedPulls {
    /// All: another process may apply the rules.
    All,
    /// Those of repositories whose rules ask for them, so that reading changes nothing else.
    OfRules,
}

impl<S: Storage> Server<S> {
    /// Serves the content of `storage` to clients that `access` admits.
    pub fn new(storage: S, access: Access, options: ServerOptions) -> Arc<Self> {
        Self::with_sessions(storage, access, options, UploadScope::Process, RecordedPulls::OfRules)
    }

    /// [`Server::new`] for one of several processes that serve the same storage. Any of them may
    /// receive the next request of an upload.
    pub fn replica(storage: S, access: Access, options: ServerOptions) -> Arc<Self> {
        Self::with_sessions(storage, access, options, UploadScope::Replicas, RecordedPulls::All)
    }

    fn with_sessions(
        storage: S,
        access: Access,
        options: ServerOptions,
        uploads: UploadScope,
        recorded_pulls: RecordedPulls,
    ) -> Arc<Self> {
        let (sessions, known_sizes) = (Sessions::new(uploads), KnownSizes::default());
        Arc::new(Self { storage, access, options, sessions, recorded_pulls, known_sizes })
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
    let changes_manifests = matches!(*request.method(), Method::PUT | Method::DELETE)
        && matches!(route::parse(request.uri()), Ok(Some(Route::In(_, Object::Manifest(_)))));
    if !changes_manifests {
        return respond(&server, request).await;
    }
    // A client that disconnects must not leave an announcement, or a change that the journal lacks.
    let done = finished(spawn(async move { respond(&server, request).await }.in_current_span())).await;
    done.unwrap_or_else(|error| ErrorReply::from(error).into_response())
}

async fn respond<S: Storage>(server: &Arc<Server<S>>, request: Request) -> Response {
    let mut entry = OpenEntry::begin(server.options.journal.as_ref(), &request);
    let mut response = answer(server, request, &mut entry).await.unwrap_or_else(|response| response);
    response.headers_mut().insert(VERSION, uploads::value("registry/2.0"));
    entry.end(&mut response);
    response
}

/// Access is checked before anything is looked up, so that a client without access learns nothing.
async fn answer<S: Storage>(
    server: &Arc<Server<S>>,
    request: Request,
    entry: &mut OpenEntry<'_>,
) -> Result<Response, Response> {
    let (parts, body) = request.into_parts();
    if parts.uri.path() == TOKEN_PATH && parts.method == Method::GET {
        entry.is_for_token();
        return Ok(server.access.token(&parts.headers, parts.uri.query().unwrap_or_default()).await);
    }
    let mut found = route::parse(&parts.uri).map_err(IntoResponse::into_response)?;
    if let Some(Route::In(repository, _)) = &mut found {
        server.name_as_copy(repository);
    }
    if let Some(found) = &found {
        entry.is_about(&parts.method, &parts.uri, found);
    }
    if let Some(Route::In(repository, _)) = &mut found {
        repository.mirrored =
            server.is_forwarded(repository, &parts.headers) || parts.extensions.get::<OnlyHere>().is_some();
        // A mirror is read-only. A token for a local name is no permission for the same name
        // elsewhere.
        if repository.namespace.is_some() && !is_read(&parts.method) {
            let refused = ErrorReply::new(
                ErrorCode::Unsupported,
                "requests with `ns` are read-only: this server is a mirror for them",
            );
            return Err(refused.into_response());
        }
        server.ensure_is_no_copy(repository, &parts.method).map_err(IntoResponse::into_response)?;
    }
    if let Some(found) = &found {
        let identity = server.admit(found, &parts).await.map_err(IntoResponse::into_response)?;
        entry.is_from(identity.user);
    }
    serve(server, found, &parts, body).await.map_err(IntoResponse::into_response)
}

impl<S: Storage> Server<S> {
    /// Checks whether the client may make this request.
    async fn admit(&self, route: &Route, parts: &Parts) -> Result<Identity, access::Refusal> {
        let base = self.base(&parts.headers);
        let (repository, object) = match route {
            Route::Base => return self.access.check(&parts.headers, &base, None, Action::Pull).await,
            Route::Catalog => {
                let identity = self.access.check(&parts.headers, &base, None, Action::Pull).await?;
                if identity.may_list {
                    return Ok(identity);
                }
                let message = "the list of repositories needs a grant to pull from `**`".to_owned();
                return Err(access::Refusal::Denied { message });
            }
            Route::In(repository, object) => (&repository.name, object),
        };
        let action = match (&parts.method, object) {
            (method, Object::Blob(text)) if is_read(method) => {
                if let Ok(digest) = text.parse() {
                    let query = parts.uri.query();
                    return self.access.check_blob(&parts.headers, &base, repository, &digest, query).await;
                }
                Action::Pull
            }
            (_, Object::Uploads | Object::Upload(_)) => Action::Push,
            (method, _) if is_read(method) => Action::Pull,
            (&Method::DELETE, _) => Action::Delete,
            _ => Action::Push,
        };
        self.access.check(&parts.headers, &base, Some(repository), action).await
    }

    /// Gives a repository of another registry the name of its copy here.
    fn name_as_copy(&self, repository: &mut Repository) {
        let Some(host) = &repository.namespace else { return };
        if let Some(name) = self.options.copied.own_name(host, &repository.name) {
            *repository = Repository { name, namespace: None, ..*repository };
        }
    }

    /// Whether a request must not cause another one to its source. A client that uses this server
    /// as a mirror may cause copies; another server that copies may not.
    fn is_forwarded(&self, repository: &Repository, headers: &HeaderMap) -> bool {
        match headers.get(crate::MIRRORED) {
            Some(mark) => mark == crate::FOR_COPIES || self.options.copied.source(&repository.name).is_none(),
            None => false,
        }
    }

    /// Refuses a push to a copy: the next pull would replace it. Copies may be deleted.
    fn ensure_is_no_copy(&self, repository: &Repository, method: &Method) -> Result<(), ErrorReply> {
        if is_read(method) || method == Method::DELETE {
            return Ok(());
        }
        let Some(source) = self.options.copied.source(&repository.name) else { return Ok(()) };
        let message = format!(
            "`{}` is a copy of `{}` of `{}`; push to a repository with another name",
            repository.name, source.name, source.host
        );
        Err(ErrorReply::new(ErrorCode::Denied, message))
    }

    fn base(&self, headers: &HeaderMap) -> String {
        base_url(self.options.scheme, headers)
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
