//! Listing, showing, copying and deleting models.

use std::time::{Duration, SystemTime};

use api::ollama::{
    CopyRequest, DeleteRequest, ModelEntry, PsEntry, PsResponse, ShowRequest, ShowResponse, TagsResponse,
    VersionResponse,
};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use manifests::ModelRef;

use super::Daemon;
use super::describe;
use super::error::{Body, Failed};
use crate::ops::{Library, Model};

pub(super) async fn root() -> &'static str {
    // Clients look for this very text.
    "Ollama is running"
}

pub(super) async fn version() -> Json<VersionResponse> {
    Json(VersionResponse { version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// Runs something that reads the disk.
pub(super) async fn blocking<T: Send + 'static>(
    library: &Library,
    work: impl FnOnce(&Library) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Failed> {
    let library = library.clone();
    let done = tokio::task::spawn_blocking(move || work(&library)).await;
    Ok(done.map_err(|e| anyhow::anyhow!("the operation ended unexpectedly: {e}"))??)
}

/// The name in a request: `model`, or `name` from older clients.
pub(super) fn reference(model: &str, name: &str) -> Result<ModelRef, Failed> {
    let text = if model.is_empty() { name } else { model };
    if text.is_empty() {
        return Err(Failed::bad_request("model is required"));
    }
    Ok(text.parse()?)
}

/// The model of that name.
pub(super) async fn find(daemon: &Daemon, reference: ModelRef) -> Result<Model, Failed> {
    blocking(&daemon.library, move |library| library.find(&reference)).await
}

pub(super) async fn tags(State(daemon): State<Daemon>) -> Result<Json<TagsResponse>, Failed> {
    let listed = |library: &Library| Ok((library.list()?, library.store.pins()?));
    let (models, pins) = blocking(&daemon.library, listed).await?;
    let pinned = |name: &str| {
        let key = name.parse::<ModelRef>().ok().and_then(|reference| reference.tag_key());
        key.is_some_and(|key| pins.binary_search(&key).is_ok())
    };
    let entry = |model: &Model| ModelEntry { pinned: pinned(&model.name), ..describe::entry(model) };
    Ok(Json(TagsResponse { models: models.iter().map(entry).collect() }))
}

pub(super) async fn show(
    State(daemon): State<Daemon>,
    Body(request): Body<ShowRequest>,
) -> Result<Json<ShowResponse>, Failed> {
    let reference = reference(&request.model, &request.name)?;
    let answer = move |library: &Library| describe::show(library, &library.find(&reference)?, request.verbose);
    Ok(Json(blocking(&daemon.library, answer).await?))
}

pub(super) async fn copy(State(daemon): State<Daemon>, Body(request): Body<CopyRequest>) -> Result<(), Failed> {
    let source: ModelRef = reference(&request.source, "")?;
    let destination: ModelRef = reference(&request.destination, "")?;
    let copied = blocking(&daemon.library, move |library| library.copy(&source, &destination)).await;
    copied.map_err(|failed| quoted(failed, &request.source))
}

pub(super) async fn delete(State(daemon): State<Daemon>, Body(request): Body<DeleteRequest>) -> Result<(), Failed> {
    let reference = reference(&request.model, &request.name)?;
    let shown = reference.to_string();
    let asked = reference.clone();
    blocking(&daemon.library, move |library| library.ensure_not_pinned(&asked)).await?;
    let model = find(&daemon, reference.clone()).await;
    // A model whose documents are damaged can be deleted all the same.
    if let Ok(model) = &model {
        let digest = model.manifest.digest().to_string();
        if !blocking(&daemon.library, Library::list)
            .await?
            .iter()
            .any(|other| other.name != model.name && other.manifest.digest() == model.manifest.digest())
        {
            daemon.scheduler.stop(&digest);
        }
    }
    let deleted = blocking(&daemon.library, move |library| library.delete(&reference)).await;
    deleted.map_err(|failed| quoted(failed, &shown))
}

/// These two endpoints quote the name in another way.
fn quoted(failed: Failed, name: &str) -> Failed {
    if failed.status == StatusCode::NOT_FOUND {
        return Failed::new(failed.status, format!("model \"{name}\" not found"));
    }
    failed
}

pub(super) async fn ps(State(daemon): State<Daemon>) -> Result<Json<PsResponse>, Failed> {
    /// What is told of a model that stays for good.
    const FOREVER: Duration = Duration::from_hours(876_000);
    let listed = blocking(&daemon.library, Library::list).await?;
    let entry = |loaded: scheduler::Loaded| {
        let model = listed.iter().find(|model| model.manifest.digest().to_string() == loaded.key.model);
        let size = loaded.reply.weights + loaded.reply.kv_cache;
        PsEntry {
            name: loaded.name.clone(),
            model: loaded.name,
            size,
            digest: loaded.key.model.trim_start_matches("sha256:").to_owned(),
            details: model.map(describe::details).unwrap_or_default(),
            expires_at: describe::timestamp(loaded.expires.unwrap_or_else(|| SystemTime::now() + FOREVER)),
            size_vram: if loaded.reply.device == "cpu" { 0 } else { size },
            context_length: loaded.reply.context,
            pid: loaded.pid,
        }
    };
    Ok(Json(PsResponse { models: daemon.scheduler.loaded().into_iter().map(entry).collect() }))
}
