//! Listing, showing, copying and deleting models.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::ollama::{
    CopyRequest, DeleteRequest, ModelEntry, PsEntry, PsResponse, ShowRequest, TagsResponse, VersionResponse,
};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use content::Digest;
use content::operation::OperationError;
use manifests::ModelRef;
use transfer::HubReference;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::headers::attested;
use crate::model_documents;
use crate::page;
use crate::query;
use library::{Library, ListPage, Listed, Model, ModelDefaults, Summary};

/// Maximum number of models on a page.
const MOST_LISTED: usize = 1000;

pub(crate) async fn root(headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    // Only browsers accept HTML explicitly; API clients accept anything.
    let takes_pages = accepted.flat_map(|value| value.split(',')).any(|media| media.trim().starts_with("text/html"));
    let mut response = if takes_pages {
        page::page(headers).await
    } else {
        // Clients match on this exact text.
        "Ollama is running".into_response()
    };
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
    response
}

pub(crate) async fn version() -> Json<VersionResponse> {
    Json(VersionResponse::new(env!("CARGO_PKG_VERSION")))
}

/// Runs an operation that reads the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    library: &Library,
    work: impl FnOnce(&Library) -> content::operation::Result<T> + Send + 'static,
) -> Result<T, Failed> {
    let library = library.clone();
    let done = tokio::task::spawn_blocking(move || work(&library)).await;
    Ok(done.map_err(|e| OperationError::text(format!("the operation ended unexpectedly: {e}")))??)
}

/// Returns the name in a request: `model`, or `name` from older clients.
pub(crate) fn reference(model: &str, name: &str) -> Result<ModelRef, Failed> {
    let text = if model.is_empty() { name } else { model };
    if text.is_empty() {
        return Err(Failed::bad_request("model is required"));
    }
    Ok(named(text)?)
}

/// Returns the name of a model in the store. A model of a hub has the same name, whichever alias of
/// the hub is used.
///
/// # Errors
/// The text is not a valid name.
pub(crate) fn named(text: &str) -> content::operation::Result<ModelRef> {
    match HubReference::parse(text)? {
        Some(hub) => hub.model_ref(),
        None => Ok(text.parse()?),
    }
}

/// Finds a model by its reference.
pub(crate) async fn find(daemon: &Daemon, reference: ModelRef) -> Result<Model, Failed> {
    blocking(&daemon.library, move |library| library.find(&reference)).await
}

/// Finds a model by the text of its name. A not-found error quotes the name as the client wrote it.
pub(crate) async fn find_named(daemon: &Daemon, name: &str) -> Result<Model, Failed> {
    let found = find(daemon, reference(name, "")?).await;
    found.map_err(|failed| as_written(failed, name))
}

/// Finds a model by the name that a client wrote, and returns it with its own defaults.
pub(crate) async fn find_called(daemon: &Daemon, name: &str) -> Result<(Model, Arc<ModelDefaults>), Failed> {
    let reference = reference(name, "")?;
    let found = blocking(&daemon.library, move |library| {
        let model = library.find(&reference)?;
        let own = model.own(library)?;
        Ok((model, own))
    });
    found.await.map_err(|failed| as_written(failed, name))
}

/// Makes a not-found error quote the name as the client wrote it.
fn as_written(failed: Failed, name: &str) -> Failed {
    // A more specific message, for example about another digest, stays.
    if failed.status == StatusCode::NOT_FOUND && failed.message.starts_with("model '") {
        return Failed::new(failed.status, format!("model '{name}' not found"));
    }
    failed
}

/// Lists all models, the newest first; or a page of them, sorted by name, if the query has `limit`,
/// `after` or `q`.
pub(crate) async fn tags(State(daemon): State<Daemon>, uri: Uri) -> Result<Json<TagsResponse>, Failed> {
    let page = page_of(uri.query())?;
    let listed = move |library: &Library| {
        let (models, next) = match &page {
            Some(page) => {
                let listed = library.list_page(page)?;
                (listed.models, listed.next)
            }
            None => (library.list()?, None),
        };
        let pins = library.names().pins();
        let pinned = |name: &str| {
            let key = name.parse::<ModelRef>().ok().and_then(|reference| reference.tag_key());
            key.is_some_and(|key| pins.binary_search(&key).is_ok())
        };
        let entry = |listed: &Listed| ModelEntry { pinned: pinned(&listed.name), ..model_documents::entry(listed) };
        Ok(TagsResponse { models: models.iter().map(entry).collect(), next })
    };
    Ok(Json(blocking(&daemon.library, listed).await?))
}

/// The page that a query names; `None` for all models.
fn page_of(query: Option<&str>) -> Result<Option<ListPage>, Failed> {
    let [limit, after, text] = ["limit", "after", "q"].map(|name| query::value(query, name));
    if limit.is_none() && after.is_none() && text.is_none() {
        return Ok(None);
    }
    let number = |text: String| match text.parse() {
        Ok(number @ 1..=MOST_LISTED) => Ok(number),
        _ => Err(Failed::bad_request(format!("`limit={text}` is not a number from 1 to {MOST_LISTED}"))),
    };
    let most = limit.map_or(Ok(MOST_LISTED), number)?;
    // A name as in the list, or the key that a page ended with.
    let key = |name: String| name.parse::<ModelRef>().ok().and_then(|name| name.tag_key()).unwrap_or(name);
    Ok(Some(ListPage { after: after.map(key), most, text: text.unwrap_or_default() }))
}

pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Body(mut request): Body<ShowRequest>,
) -> Result<Response, Failed> {
    if request.model.is_empty() {
        request.model = std::mem::take(&mut request.name);
    }
    let model = find_named(&daemon, &request.model).await?;
    let digest = *model.manifest.digest();
    let answer = move |library: &Library| model_documents::show(library, &model, &request);
    Ok(attested(Json(blocking(&daemon.library, answer).await?).into_response(), &digest))
}

pub(crate) async fn copy(State(daemon): State<Daemon>, Body(request): Body<CopyRequest>) -> Result<(), Failed> {
    let name = |what: &str, name: &str| {
        reference(name, "").map_err(|_| Failed::bad_request(format!("{what} \"{name}\" is invalid")))
    };
    let (source, destination) = (name("source", &request.source)?, name("destination", &request.destination)?);
    let copied = blocking(&daemon.library, move |library| library.copy(&source, &destination)).await;
    copied.map_err(|failed| match failed.status {
        // This endpoint quotes the name differently.
        StatusCode::NOT_FOUND => Failed::new(failed.status, format!("model \"{}\" not found", request.source)),
        _ => failed,
    })
}

pub(crate) async fn delete(State(daemon): State<Daemon>, Body(request): Body<DeleteRequest>) -> Result<(), Failed> {
    let name = if request.model.is_empty() { request.name } else { request.model };
    let reference = reference(&name, "")?;
    let asked = reference.clone();
    blocking(&daemon.library, move |library| library.ensure_not_pinned(&asked)).await?;
    let model = find(&daemon, reference.clone()).await;
    // A model with damaged documents can still be deleted.
    if let Ok(model) = model {
        let (name, digest) = (model.name.parse::<ModelRef>()?, *model.manifest.digest());
        if !blocking(&daemon.library, move |library| Ok(library.has_other_name(&digest, &name))).await? {
            daemon.scheduler.stop(&digest);
        }
    }
    let deleted = blocking(&daemon.library, move |library| library.delete(&reference)).await;
    deleted.map_err(|failed| as_written(failed, &name))
}

pub(crate) async fn ps(State(daemon): State<Daemon>) -> Result<Json<PsResponse>, Failed> {
    /// The reported remaining time of a model that never expires.
    const FOREVER: Duration = Duration::from_hours(876_000);
    let loaded = daemon.scheduler.loaded();
    let digests: Vec<Digest> = loaded.iter().map(|loaded| loaded.key.model).collect();
    let summaries = blocking(&daemon.library, move |library| {
        Ok(digests.iter().map(|digest| library.summary(digest)).collect::<Vec<_>>())
    });
    let entry = |(loaded, summary): (scheduler::Loaded, Option<Arc<Summary>>)| {
        let size = loaded.reply.weights + loaded.reply.kv_cache;
        PsEntry {
            name: loaded.name.clone(),
            model: loaded.name,
            size,
            digest: loaded.key.model.to_string().trim_start_matches("sha256:").to_owned(),
            details: summary.as_deref().map(model_documents::details).unwrap_or_default(),
            expires_at: model_documents::timestamp(loaded.expires.unwrap_or_else(|| SystemTime::now() + FOREVER)),
            size_vram: loaded.reply.on_devices.min(size),
            context_length: loaded.reply.context,
            pid: loaded.pid,
            device: loaded.reply.device,
            device_note: loaded.reply.device_note,
        }
    };
    Ok(Json(PsResponse { models: loaded.into_iter().zip(summaries.await?).map(entry).collect() }))
}
