//! LM Studio's list of models.

use std::collections::HashMap;

use api::lm_studio::{Model, Models};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use content::Digest;
use library::{Capability, Library, Listed};
use manifests::ModelRef;

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::{blocking, named};
use crate::openai::failure::OpenAiFailure;

pub(crate) async fn list(State(daemon): State<Daemon>) -> Result<Json<Models>, OpenAiFailure> {
    Ok(Json(Models { object: "list", data: all(&daemon).await? }))
}

pub(crate) async fn show(State(daemon): State<Daemon>, Path(name): Path<String>) -> Result<Json<Model>, OpenAiFailure> {
    let wanted = named(&name)?.to_string();
    let found = all(&daemon).await?.into_iter().find(|model| model.id == wanted);
    found.map(Json).ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, format!("model '{name}' not found")).into())
}

async fn all(daemon: &Daemon) -> Result<Vec<Model>, Failed> {
    let loaded = daemon.scheduler.loaded().into_iter();
    let loaded: HashMap<Digest, u64> = loaded.map(|loaded| (loaded.key.model, loaded.reply.context)).collect();
    let models = blocking(&daemon.library, Library::list).await?;
    Ok(models.iter().map(|listed| model(listed, loaded.get(&listed.summary.digest).copied())).collect())
}

fn model(Listed { name, summary, .. }: &Listed, context: Option<u64>) -> Model {
    let repository = name.parse::<ModelRef>().map(|reference| reference.repository().to_owned()).unwrap_or_default();
    let embeds = summary.capabilities.has(Capability::Embedding) && !summary.capabilities.has(Capability::Completion);
    Model {
        id: name.clone(),
        object: "model",
        kind: if embeds { "embeddings" } else { "llm" },
        publisher: repository.rsplit_once('/').map_or_else(|| "library".to_owned(), |(owner, _)| owner.to_owned()),
        arch: summary.family.clone(),
        compatibility_type: summary.format.clone(),
        quantization: summary.quantization.clone(),
        state: if context.is_some() { "loaded" } else { "not-loaded" },
        max_context_length: summary.context,
        loaded_context_length: context,
        capabilities: summary.capabilities.names(),
    }
}
