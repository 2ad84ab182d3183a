//! The server: the OCI distribution specification 1.1 on `/v2/`.
//!
//! ```text
//! request ──▶ route ──▶ access ──▶ blobs │ uploads │ manifests │ lists ──▶ storage
//! ```
//! It keeps nothing but open uploads; everything else is asked of the [`Storage`] each time, so several may serve one.

mod blobs;
mod lists;
mod manifests;
mod range;
pub mod refusal;
mod route;
mod sessions;
pub mod storage;
mod uploads;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};

pub use refusal::Refused;
pub use sessions::UPLOAD_PREFIX;
pub use storage::{BlobStorage, ManifestStorage, NewManifest, Reference, Removal, Repository, Storage};

use crate::ErrorCode;
use route::{Object, Route};
use sessions::Sessions;

/// The digest of what is answered.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// By which clients know a registry.
const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// A registry over a storage.
#[derive(Debug)]
pub struct Server<S: Storage> {
    storage: S,
    sessions: Sessions<S::Ingest>,
}

impl<S: Storage> Server<S> {
    /// Serves what is in `storage`.
    pub fn new(storage: S) -> Arc<Self> {
        Arc::new(Self { storage, sessions: Sessions::new() })
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

async fn handle<S: Storage>(State(server): State<Arc<Server<S>>>, request: Request) -> Response {
    let mut response = answer(&server, request).await.unwrap_or_else(IntoResponse::into_response);
    response.headers_mut().insert(VERSION, uploads::value("registry/2.0"));
    response
}

async fn answer<S: Storage>(server: &Arc<Server<S>>, request: Request) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
    let found = route::parse(uri)?;
    let Some(found) = found else {
        let message = format!("`{}` is not served here", uri.path());
        return Err(Refused::with_status(StatusCode::NOT_FOUND, ErrorCode::Unsupported, message));
    };
    let (repository, object) = match found {
        Route::Base if is_read(method) => return Ok(Json(serde_json::json!({})).into_response()),
        Route::Catalog if is_read(method) => return lists::catalog(server, uri).await,
        Route::Base | Route::Catalog => return Err(not_allowed(method)),
        Route::In(repository, object) => (repository, object),
    };
    match (method.as_str(), object) {
        ("GET" | "HEAD", Object::Blob(text)) => {
            blobs::get(server, &repository, &uploads::digest(&text)?, method, headers).await
        }
        ("DELETE", Object::Blob(text)) => blobs::delete(server, &repository, &uploads::digest(&text)?).await,
        ("POST", Object::Uploads) => uploads::post(server, &repository, uri, body).await,
        ("GET" | "HEAD", Object::Upload(id)) => uploads::status(server, &repository, &id).await,
        ("PATCH", Object::Upload(id)) => uploads::patch(server, &repository, &id, headers, body).await,
        ("PUT", Object::Upload(id)) => uploads::put(server, &repository, &id, uri, headers, body).await,
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

fn not_allowed(method: &Method) -> Refused {
    Refused::new(ErrorCode::Unsupported, format!("`{method}` is not for this path"))
}
