//! `lode launch`: starts a coding agent with a model of this daemon.
//!
//! The environment and the arguments of an agent point it to the daemon, so that its own settings
//! stay unchanged. An agent that supports neither gets a separate settings file, after a
//! confirmation by the user.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use api::ollama::{ShowRequest, ShowResponse, TagsResponse};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;

use super::client::Client;
use super::{ask, transfer};
use crate::config::Config;

/// The API key for agents if the daemon needs none: several agents do not start without a key.
const NO_KEY: &str = "lode";
/// The context length in tokens below which agents do not work well: their first prompts have
/// 10,000 to 20,000 tokens.
const SHORT_CONTEXT: u64 = 32_768;

/// Arguments of `lode launch`.
#[derive(Debug, Args)]
pub(super) struct LaunchArguments {
    /// The agent to start
    #[arg(value_enum)]
    agent: Agent,
    /// The model to use; without it the newest one that can call tools
    #[arg(long, add = ArgValueCompleter::new(super::completion::models))]
    model: Option<String>,
    /// Print the command, and start nothing
    #[arg(long)]
    print: bool,
    /// Do not ask before a file is written or a model is pulled
    #[arg(short, long)]
    yes: bool,
    /// Arguments for the agent, after `--`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// A coding agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Agent {
    /// Claude Code
    Claude,
    /// `OpenAI`'s Codex
    Codex,
    /// opencode
    Opencode,
    /// Aider
    Aider,
    /// GitHub Copilot's command line
    Copilot,
    /// Continue CLI
    Continue,
}

impl Agent {
    /// Returns the name of the program and the command that installs it.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Claude => ("claude", "npm install -g @anthropic-ai/claude-code"),
            Self::Codex => ("codex", "npm install -g @openai/codex"),
            Self::Opencode => ("opencode", "npm install -g opencode-ai"),
            Self::Aider => ("aider", "pip install aider-chat"),
            Self::Copilot => ("copilot", "npm install -g @github/copilot"),
            Self::Continue => ("cn", "npm install -g @continuedev/cli"),
        }
    }
}

/// The environment, arguments and files that start an agent.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(Debug))]
struct Launch {
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    /// Path and content of a settings file.
    file: Option<(PathBuf, String)>,
}

pub(super) async fn run(config: &Config, arguments: &LaunchArguments) -> Result<()> {
    let client = Client::connect(config).await?;
    let model = match &arguments.model {
        // `--print` changes nothing, so it does not pull.
        Some(name) if arguments.print => name.clone(),
        Some(name) => {
            transfer::fetch_missing(&client, name, !arguments.yes).await?;
            name.clone()
        }
        None => newest(&client).await?,
    };
    if !arguments.print {
        advise(&client, &model).await?;
    }
    let key = config.key.as_ref().map_or(NO_KEY, |key| key.0.as_str());
    let settings = std::env::home_dir().context("there is no home folder to keep settings in")?;
    let launch = launch(arguments.agent, &config.url, key, &model, &settings);
    let (program, install) = arguments.agent.program();
    if arguments.print {
        print(program, &launch, &arguments.arguments);
        return Ok(());
    }
    if let Some((path, text)) = &launch.file {
        write(path, text, arguments.yes)?;
    }
    eprintln!("starting {program} with {model} at {}", config.url);
    let mut command = Command::new(program);
    command.envs(launch.environment).args(launch.arguments).args(&arguments.arguments);
    // `exec` replaces this process, and returns only on failure.
    let error = command.exec();
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            bail!("`{program}` is not installed, or not on the PATH; install it with `{install}`")
        }
        _ => Err(error).with_context(|| format!("cannot start `{program}`")),
    }
}

/// Returns the newest model that can call tools.
async fn newest(client: &Client) -> Result<String> {
    let tags: TagsResponse = client.get("/api/tags").await?;
    let able = tags.models.into_iter().filter(|model| model.capabilities.iter().any(|able| able == "tools"));
    let newest = able.max_by(|a, b| a.modified_at.cmp(&b.modified_at));
    newest.map(|model| model.name).context("no model here can call tools; name one with --model, e.g. `--model qwen3`")
}

/// Warns about properties of the model that hinder an agent.
async fn advise(client: &Client, model: &str) -> Result<()> {
    let request = ShowRequest { model: model.to_owned(), ..ShowRequest::default() };
    let shown: ShowResponse = client.post("/api/show", &request).await?;
    ensure!(
        shown.capabilities.iter().any(|able| able == "completion"),
        "`{model}` does not write text: an agent cannot work with it"
    );
    if !shown.capabilities.iter().any(|able| able == "tools") {
        eprintln!("note: the chat template of `{model}` does not support tools; the agent can answer but not act");
    }
    let context = shown.details.context_length;
    if (1..SHORT_CONTEXT).contains(&context) {
        eprintln!("note: `{model}` was made for {context} tokens of context; agents want {SHORT_CONTEXT} or more");
    }
    Ok(())
}

/// Returns how to start an agent with a model of the daemon at `url`.
fn launch(agent: Agent, url: &str, key: &str, model: &str, home: &Path) -> Launch {
    let (openai, key, model) = (format!("{url}/v1"), key.to_owned(), model.to_owned());
    match agent {
        Agent::Claude => Launch {
            environment: vec![
                ("ANTHROPIC_BASE_URL", url.to_owned()),
                ("ANTHROPIC_AUTH_TOKEN", key),
                // An API key of the user would take precedence over the token.
                ("ANTHROPIC_API_KEY", String::new()),
                ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model.clone()),
                ("CLAUDE_CODE_SUBAGENT_MODEL", model.clone()),
            ],
            arguments: vec!["--model".to_owned(), model],
            file: None,
        },
        Agent::Codex => {
            let set = |name: &str, value: &str| ["-c".to_owned(), format!("{name}={}", json!(value))];
            let settings = [
                set("model_provider", "lode"),
                set("model_providers.lode.name", "Lode"),
                set("model_providers.lode.base_url", &openai),
                set("model_providers.lode.wire_api", "responses"),
                set("model_providers.lode.env_key", "LODE_API_KEY"),
            ];
            let arguments = settings.into_iter().flatten().chain(["-m".to_owned(), model]).collect();
            Launch { environment: vec![("LODE_API_KEY", key)], arguments, file: None }
        }
        Agent::Opencode => {
            let provider = json!({"npm": "@ai-sdk/openai-compatible", "name": "Lode",
                "options": {"baseURL": openai, "apiKey": key}, "models": {model.clone(): {"name": model}}});
            let settings = json!({"provider": {"lode": provider}, "model": format!("lode/{model}")});
            Launch { environment: vec![("OPENCODE_CONFIG_CONTENT", settings.to_string())], ..Launch::default() }
        }
        Agent::Aider => Launch {
            environment: vec![("OPENAI_API_BASE", openai), ("OPENAI_API_KEY", key)],
            arguments: vec!["--model".to_owned(), format!("openai/{model}")],
            file: None,
        },
        Agent::Copilot => Launch {
            environment: vec![
                ("COPILOT_PROVIDER_BASE_URL", openai),
                ("COPILOT_PROVIDER_API_KEY", key),
                ("COPILOT_PROVIDER_WIRE_API", "responses".to_owned()),
                ("COPILOT_MODEL", model),
            ],
            ..Launch::default()
        },
        Agent::Continue => {
            let entry = json!({"name": model, "provider": "openai", "model": model, "apiBase": openai, "apiKey": key,
                "roles": ["chat", "edit", "apply"]});
            // JSON is YAML, too.
            let settings = json!({"name": "Lode", "version": "1.0.0", "schema": "v1", "models": [entry]});
            let file = home.join(".continue/lode.yaml");
            Launch {
                arguments: vec!["--config".to_owned(), file.display().to_string()],
                file: Some((file, format!("{settings:#}\n"))),
                ..Launch::default()
            }
        }
    }
}

/// Prints the command in shell syntax, after the settings file as comments.
fn print(program: &str, launch: &Launch, further: &[String]) {
    if let Some((path, text)) = &launch.file {
        println!("# {}", path.display());
        text.lines().for_each(|line| println!("# {line}"));
    }
    let variables = launch.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let words = launch.arguments.iter().chain(further).map(|word| quoted(word));
    let command: Vec<String> = variables.chain([program.to_owned()]).chain(words).collect();
    println!("{}", command.join(" "));
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Writes a settings file after a confirmation by the user.
fn write(path: &Path, text: &str, yes: bool) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if !yes {
        eprint!("{text}");
        let instead = if path.exists() { " in the place of what it has" } else { "" };
        let question = format!("Write these settings to `{}`{instead}?", path.display());
        ensure!(ask::is_possible(), "`{}` has to be written; say --yes to do so without being asked", path.display());
        ensure!(ask::yes(&question, ask::Default::Yes)?, "nothing was written, and nothing was started");
    }
    let failed = || format!("cannot write `{}`", path.display());
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(failed)?;
    // The file contains the key, so only its owner may read it.
    let partial = path.with_added_extension("partial");
    // A fresh file: an existing one may be readable by other users, or be a link.
    let _ = std::fs::remove_file(&partial);
    let mut file = OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(&partial).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    std::fs::rename(&partial, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(agent: Agent) -> Launch {
        launch(agent, "http://127.0.0.1:11434", "k", "qwen3:4b", Path::new("/home/u"))
    }

    #[test]
    fn agents_are_told_where_the_daemon_is() {
        for agent in Agent::value_variants() {
            let launch = of(*agent);
            let told = format!("{launch:?}");
            assert!(told.contains("http://127.0.0.1:11434") && told.contains("qwen3:4b"), "{told}");
        }
        // Claude Code appends `/v1` to the URL.
        assert_eq!(of(Agent::Claude).environment[0].1, "http://127.0.0.1:11434");
        assert!(of(Agent::Codex).arguments.contains(&"model_providers.lode.wire_api=\"responses\"".to_owned()));
        let (path, text) = of(Agent::Continue).file.expect("settings");
        assert_eq!(path, Path::new("/home/u/.continue/lode.yaml"));
        assert!(text.contains("\"apiBase\": \"http://127.0.0.1:11434/v1\""), "{text}");
    }

    #[test]
    fn words_are_quoted_for_shells() {
        for (word, expect) in
            [("a-b", "a-b"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("{\"a\":1}", "'{\"a\":1}'")]
        {
            assert_eq!(quoted(word), expect);
        }
    }
}
