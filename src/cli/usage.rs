//! `lode du`.

use anyhow::{Result, bail};
use api::lode::{DuModel, DuResponse};
use manifests::ModelRef;

use super::Format;
use super::client::Client;
use super::text::table;
use crate::config::Config;
use content::text::size;

pub(super) async fn run(config: &Config, models: &[String], format: Format) -> Result<()> {
    let mut usage: DuResponse = Client::connect(config).await?.get("/api/lode/du").await?;
    if !models.is_empty() {
        usage.models = chosen(&usage.models, models)?;
    }
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&usage)?);
        return Ok(());
    }
    let has_adopted = usage.adopted_bytes > 0;
    let row = |model: &DuModel| {
        let pinned = if model.pinned { "pinned" } else { "" };
        let sizes = [model.bytes, model.unique_bytes, model.shared_bytes, model.adopted_bytes].map(size);
        let sizes = sizes.into_iter().take(if has_adopted { 4 } else { 3 });
        [model.name.clone()].into_iter().chain(sizes).chain([pinned.to_owned()]).collect()
    };
    let rows: Vec<Vec<String>> = usage.models.iter().map(row).collect();
    let adopted = has_adopted.then_some("ADOPTED");
    table(&["NAME", "SIZE", "UNIQUE", "SHARED"].into_iter().chain(adopted).chain([""]).collect::<Vec<_>>(), &rows);
    if !models.is_empty() {
        return Ok(());
    }
    println!();
    for (what, bytes) in [
        ("blobs", usage.bytes),
        ("of them only in earlier versions", usage.version_bytes),
        ("of them only in manifests without a tag", usage.linked_bytes),
        ("of them in no model", usage.unreferenced_bytes),
        ("on their way in", usage.ingest_bytes),
        ("damaged and set aside", usage.damaged_bytes),
        ("only in the tier", usage.tier_bytes),
        ("adopted, in other files", usage.adopted_bytes),
        ("only in roots", usage.root_bytes),
        ("free on the disk", usage.free_bytes),
    ] {
        println!("{what:<40} {}", size(bytes));
    }
    Ok(())
}

fn chosen(all: &[DuModel], names: &[String]) -> Result<Vec<DuModel>> {
    let mut chosen = Vec::new();
    for name in names {
        let wanted = name.parse::<ModelRef>()?.to_string();
        let Some(model) = all.iter().find(|model| model.name.eq_ignore_ascii_case(&wanted)) else {
            bail!("model '{wanted}' not found");
        };
        chosen.push(model.clone());
    }
    Ok(chosen)
}
