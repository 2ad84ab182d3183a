//! `lode list` and `lode ps`.

use anyhow::Result;
use api::lode::{LinkedManifest, LinkedResponse};
use api::ollama::{PsResponse, TagsResponse};

use super::Format;
use super::client::Client;
use super::text::{relative, table};
use crate::config::Config;
use content::text::size;

/// Number of digest characters in tables.
const ID: usize = 12;

fn id(digest: &str) -> String {
    digest.chars().take(ID).collect()
}

pub(super) async fn list(config: &Config, prefix: Option<&str>, format: Format) -> Result<()> {
    let mut tags: TagsResponse = Client::connect(config).await?.get("/api/tags").await?;
    let prefix = prefix.unwrap_or_default().to_lowercase();
    tags.models.retain(|model| model.name.to_lowercase().starts_with(&prefix));
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&tags)?);
        return Ok(());
    }
    let row = |model: &api::ollama::ModelEntry| {
        vec![model.name.clone(), id(&model.digest), size(model.size), relative(&model.modified_at)]
    };
    table(&["NAME", "ID", "SIZE", "MODIFIED"], &tags.models.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Lists manifests without a tag; `lode rm` accepts their names.
pub(super) async fn linked(config: &Config, prefix: Option<&str>, format: Format) -> Result<()> {
    let mut linked: LinkedResponse = Client::connect(config).await?.get("/api/lode/linked").await?;
    let prefix = prefix.unwrap_or_default().to_lowercase();
    linked.manifests.retain(|manifest| manifest.name.to_lowercase().starts_with(&prefix));
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&linked)?);
        return Ok(());
    }
    let row = |manifest: &LinkedManifest| vec![manifest.name.clone(), size(manifest.bytes), relative(&manifest.used)];
    table(&["NAME", "SIZE", "USED"], &linked.manifests.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Returns the shares of a model on CPU and GPU, in Ollama's format.
fn processor(model: &api::ollama::PsEntry) -> String {
    match model.size_vram.saturating_mul(100).checked_div(model.size).unwrap_or(0) {
        0 if model.size_vram == 0 => "100% CPU".to_owned(),
        100 => "100% GPU".to_owned(),
        gpu => format!("{}%/{gpu}% CPU/GPU", 100 - gpu),
    }
}

pub(super) async fn ps(config: &Config, format: Format) -> Result<()> {
    let loaded: PsResponse = Client::connect(config).await?.get("/api/ps").await?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&loaded)?);
        return Ok(());
    }
    let row = |model: &api::ollama::PsEntry| {
        vec![
            model.name.clone(),
            id(&model.digest),
            size(model.size),
            processor(model),
            model.context_length.to_string(),
            relative(&model.expires_at),
        ]
    };
    table(&["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"], &loaded.models.iter().map(row).collect::<Vec<_>>());
    for model in loaded.models.iter().filter(|model| !model.device_note.is_empty()) {
        eprintln!("{} is computed on {}: {}", model.name, model.device, model.device_note);
    }
    Ok(())
}
