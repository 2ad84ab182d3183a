//! `lode run`.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result, bail};
use api::ollama::{ShowRequest, ShowResponse};
use clap::Args;
use serde_json::{Map, Value};

use super::chat::Conversation;
use super::client::{Client, Refused};
use super::{interactive, transfer};
use crate::config::Config;

/// Arguments of `lode run`.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// Name of the model
    model: String,
    /// What to ask; what is piped in is appended
    prompt: Vec<String>,
    /// Print counts and rates after each answer
    #[arg(long)]
    verbose: bool,
    /// How long the model stays loaded afterwards, e.g. 10m; 0 unloads it at once
    #[arg(long)]
    keepalive: Option<String>,
    /// What the answer must be: json, or a JSON schema
    #[arg(long)]
    format: Option<String>,
    /// Whether to think before the answer: true, false, low, medium, high or max
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    think: Option<String>,
    /// Do not print what the model thinks
    #[arg(long)]
    hidethinking: bool,
}

pub(super) async fn run(config: &Config, arguments: &RunArguments) -> Result<()> {
    let client = Client::connect(config).await?;
    fetch(&client, &arguments.model).await?;
    let mut conversation = Conversation {
        model: arguments.model.clone(),
        messages: Vec::new(),
        options: Map::new(),
        keep_alive: arguments.keepalive.clone(),
        verbose: arguments.verbose,
        format: arguments.format.as_deref().map(format).transpose()?,
        think: arguments.think.as_deref().map(think),
        hides_thinking: arguments.hidethinking,
    };
    let prompt = prompt(&arguments.prompt)?;
    if !prompt.is_empty() {
        return conversation.say(&client, &prompt).await;
    }
    if !std::io::stdin().is_terminal() {
        bail!("there is no prompt: neither after the model's name nor on standard input");
    }
    conversation.load(&client).await?;
    interactive::run(config, &client, conversation).await
}

/// Pulls the model where it is not here: nobody should type a prompt for one that does not come.
async fn fetch(client: &Client, name: &str) -> Result<()> {
    let request = ShowRequest { model: name.to_owned(), ..ShowRequest::default() };
    let Err(missing) = client.post::<ShowResponse>("/api/show", &request).await else { return Ok(()) };
    if !Refused::is_not_found(&missing) {
        return Err(missing);
    }
    eprintln!("`{name}` is not here, it is pulled");
    let pulled = transfer::fetch(client, name).await;
    let Err(error) = pulled else { return Ok(()) };
    let suggestion = client.suggestion(name).await;
    bail!("there is no model `{name}` here, and none could be pulled: {error:#}{suggestion}")
}

/// `json`, or a schema as it is written.
fn format(text: &str) -> Result<Value> {
    if text == "json" {
        return Ok(text.into());
    }
    serde_json::from_str(text).with_context(|| format!("--format is `{text}`, expected json or a JSON schema"))
}

/// A truth value, or a level, which the daemon checks.
fn think(text: &str) -> Value {
    text.parse::<bool>().map_or_else(|_| text.into(), Value::Bool)
}

/// The words after the model, and what is piped in.
fn prompt(words: &[String]) -> Result<String> {
    let mut prompt = words.join(" ");
    if !std::io::stdin().is_terminal() {
        let mut piped = String::new();
        std::io::stdin().read_to_string(&mut piped).context("standard input is not text")?;
        if !piped.trim().is_empty() {
            if !prompt.is_empty() {
                prompt.push_str("\n\n");
            }
            prompt.push_str(piped.trim_end());
        }
    }
    Ok(prompt)
}
