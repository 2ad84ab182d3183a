//! `lode cp`, `lode rm` and `lode stop`.

use anyhow::Result;
use api::ollama::{CopyRequest, DeleteRequest};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::Client;
use crate::config::Config;

pub(super) async fn copy(config: &Config, source: &str, destination: &str) -> Result<()> {
    let request = CopyRequest { source: source.to_owned(), destination: destination.to_owned() };
    Client::connect(config).await?.tell(Method::POST, "/api/copy", &request).await?;
    eprintln!("copied '{source}' to '{destination}'");
    Ok(())
}

pub(super) async fn remove(config: &Config, models: &[String]) -> Result<()> {
    let client = Client::connect(config).await?;
    for model in models {
        let request = DeleteRequest { model: model.clone(), ..DeleteRequest::default() };
        client.tell(Method::DELETE, "/api/delete", &request).await?;
        eprintln!("deleted '{model}'");
    }
    Ok(())
}

pub(super) async fn stop(config: &Config, model: &str) -> Result<()> {
    let client = Client::connect(config).await?;
    let request = json!({"model": model, "keep_alive": 0, "stream": false});
    client.post::<Value>("/api/generate", &request).await.map(drop)
}
