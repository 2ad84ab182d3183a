//! `lode perplexity`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use api::lode::{PerplexityRequest, PerplexityResponse, Scored};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::Format;
use super::client::Client;
use super::text::table;
use crate::config::Config;

/// Arguments of `lode perplexity`.
#[derive(Debug, Args)]
pub(super) struct PerplexityArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// File with the text; `-` reads standard input
    file: PathBuf,
    /// Number of tokens that are evaluated together; without it as many as the context holds
    #[arg(long)]
    window: Option<u64>,
    /// Count only the second half of each window, as `llama-perplexity` does
    #[arg(long, requires = "window")]
    second_half: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &PerplexityArguments) -> Result<()> {
    let request = PerplexityRequest {
        model: arguments.model.clone(),
        text: read(&arguments.file)?,
        window: arguments.window,
        scored: if arguments.second_half { Scored::SecondHalf } else { Scored::All },
    };
    let found: PerplexityResponse = Client::connect(config).await?.post("/api/lode/perplexity", &request).await?;
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    let (nll, perplexity) = (format!("{:.5}", found.mean_nll), format!("{:.4}", found.perplexity));
    let row = vec![found.model, found.scored.to_string(), found.windows.to_string(), nll, perplexity];
    table(&["NAME", "TOKENS", "WINDOWS", "MEAN NLL", "PERPLEXITY"], &[row]);
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("standard input is not text")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read `{}` as text", file.display()))
}
