//! `lode history`, `rollback`, `pin` and `unpin`.

use anyhow::Result;
use api::lode::{HistoryResponse, ModelRequest, RollbackRequest, RollbackResponse};

use super::Format;
use super::client::Client;
use super::text::{relative, short, table};
use crate::config::Config;

pub(super) async fn history(config: &Config, model: &str, format: Format) -> Result<()> {
    let request = ModelRequest { model: model.to_owned() };
    let history: HistoryResponse = Client::connect(config).await?.post("/api/lode/history", &request).await?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&history)?);
        return Ok(());
    }
    let row = |version: &api::lode::HistoryEntry| {
        vec![short(&version.digest), relative(&version.since), version.state.as_str().to_owned()]
    };
    table(&["VERSION", "SINCE", "STATE"], &history.versions.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

pub(super) async fn rollback(config: &Config, model: &str, to: Option<String>) -> Result<()> {
    let request = RollbackRequest { model: model.to_owned(), to };
    let done: RollbackResponse = Client::connect(config).await?.post("/api/lode/rollback", &request).await?;
    eprintln!("'{}' was {} and is {} now", done.model, short(&done.from), short(&done.to));
    Ok(())
}

pub(super) async fn pin(config: &Config, model: &str) -> Result<()> {
    let name = tell(config, "/api/lode/pin", model).await?;
    eprintln!("pinned '{name}'");
    Ok(())
}

pub(super) async fn unpin(config: &Config, model: &str) -> Result<()> {
    let name = tell(config, "/api/lode/unpin", model).await?;
    eprintln!("unpinned '{name}'");
    Ok(())
}

async fn tell(config: &Config, path: &str, model: &str) -> Result<String> {
    let request = ModelRequest { model: model.to_owned() };
    let answer: ModelRequest = Client::connect(config).await?.post(path, &request).await?;
    Ok(answer.model)
}
