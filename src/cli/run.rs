//! `lode run`.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result, bail};
use api::ollama::Options;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Map, Value};

use super::chat::Conversation;
use super::client::Client;
use super::pictures::PicturePrompt;
use super::{interactive, transfer};
use crate::config::Config;

/// Arguments of `lode run`.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// The prompt, with the files of pictures; text on standard input is appended
    prompt: Vec<String>,
    /// Print counts and rates after each answer
    #[arg(long)]
    verbose: bool,
    /// How long the model stays loaded afterwards, e.g. 10m; 0 unloads it at once
    #[arg(long)]
    keepalive: Option<String>,
    /// Required format of the answer: json, or a JSON schema
    #[arg(long)]
    format: Option<String>,
    /// Whether and how much to think before the answer: true, false, low, medium, high or max
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    think: Option<String>,
    /// Hide the model's reasoning
    #[arg(long)]
    hidethinking: bool,
    /// An option for the generation, e.g. temperature=0; may be given several times
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, Value)>,
    /// Do not wrap lines at words
    #[arg(long)]
    nowordwrap: bool,
}

pub(super) async fn run(config: &Config, arguments: &RunArguments) -> Result<()> {
    let client = Client::connect(config).await?;
    transfer::fetch_missing(&client, &arguments.model, true).await?;
    let mut conversation = Conversation {
        model: arguments.model.clone(),
        messages: Vec::new(),
        options: arguments.parameters.iter().cloned().collect(),
        keep_alive: arguments.keepalive.clone(),
        verbose: arguments.verbose,
        format: arguments.format.as_deref().map(format).transpose()?,
        think: arguments.think.as_deref().map(think),
        hides_thinking: arguments.hidethinking,
        wraps: !arguments.nowordwrap,
        styles: config.styles,
    };
    let prompt = prompt(&arguments.prompt)?;
    if !prompt.is_empty() {
        return conversation.say(&client, prompt.into_message()?).await;
    }
    if !std::io::stdin().is_terminal() {
        bail!("there is no prompt: neither after the model's name nor on standard input");
    }
    conversation.load(&client).await?;
    interactive::run(config, &client, conversation).await
}

/// Parses `NAME=VALUE`; the option must exist.
fn parameter(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, e.g. temperature=0")?;
    option(name, value)
}

/// Parses the value of an option and checks its type.
///
/// # Errors
/// Describes the mistake, with a suggestion if one is likely.
pub(super) fn option(name: &str, value: &str) -> Result<(String, Value), String> {
    let value: Value = match name {
        // Several stop strings are a JSON list, or separate words.
        "stop" if !value.starts_with(['[', '"']) => value.split_whitespace().map(Value::from).collect(),
        _ => serde_json::from_str(value).unwrap_or_else(|_| value.into()),
    };
    let (_, unknown) = Options::read(&Map::from_iter([(name.to_owned(), value.clone())]))?;
    if unknown.is_empty() {
        return Ok((name.to_owned(), value));
    }
    let meant = Options::nearest(name).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Err(format!("there is no parameter `{name}`{meant}"))
}

/// Parses `json` or a JSON schema.
pub(super) fn format(text: &str) -> Result<Value> {
    if text == "json" {
        return Ok(text.into());
    }
    serde_json::from_str(text).with_context(|| format!("--format is `{text}`, expected json or a JSON schema"))
}

/// Parses a boolean, or passes on a level, which the daemon checks.
pub(super) fn think(text: &str) -> Value {
    text.parse::<bool>().map_or_else(|_| text.into(), Value::Bool)
}

/// Joins the words after the model and the text on standard input, and takes out the pictures.
fn prompt(words: &[String]) -> Result<PicturePrompt> {
    let mut prompt = PicturePrompt::of_words(words);
    if !std::io::stdin().is_terminal() {
        let mut piped = String::new();
        std::io::stdin().read_to_string(&mut piped).context("standard input is not text")?;
        if !piped.trim().is_empty() {
            prompt.append(piped.trim_end());
        }
    }
    Ok(prompt)
}
