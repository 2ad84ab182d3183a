//! `lode search`.

use anyhow::Result;
use api::lode::{OfferedModel, SearchRequest, SearchResponse};
use clap::Args;

use super::Format;
use super::client::Client;
use super::text::{plain, table};
use crate::config::Config;

/// Arguments of `lode search`.
#[derive(Debug, Args)]
pub(super) struct SearchArguments {
    /// Text in the names of models; without it registries list all models, and the hub is not
    /// searched
    query: Option<String>,
    /// Connect by HTTP without TLS
    #[arg(long)]
    insecure: bool,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &SearchArguments) -> Result<()> {
    let request = SearchRequest { query: arguments.query.clone().unwrap_or_default(), insecure: arguments.insecure };
    let found: SearchResponse = Client::connect(config).await?.post("/api/lode/search", &request).await?;
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    let row = |model: &OfferedModel| {
        let downloads = model.downloads.map(|count| count.to_string()).unwrap_or_default();
        vec![plain(&model.name).into_owned(), plain(&model.source).into_owned(), downloads]
    };
    table(&["NAME", "SOURCE", "DOWNLOADS"], &found.models.iter().map(row).collect::<Vec<_>>());
    for silent in &found.silent {
        eprintln!("{}: no results: {}", plain(&silent.source), plain(&silent.reason));
    }
    Ok(())
}
