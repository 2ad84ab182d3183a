//! The interactive session of `lode run`.

use anyhow::Result;
use api::ollama::{Options, ShowRequest, ShowResponse};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::Value;

use super::chat::{Conversation, message};
use super::client::Client;
use crate::config::Config;

const HELP: &str = "\
/set parameter NAME VALUE   set a parameter, e.g. temperature 0
/set system TEXT            set the system prompt
/set verbose | quiet        print counts and rates, or do not
/show [info|modelfile|parameters|system|template|license]
/clear                      forget the conversation
/help, /?                   this text
/bye                        leave (also Ctrl+D)
\"\"\" begins and ends a message of several lines";

/// Whether the session goes on.
enum Next {
    On,
    Leave,
}

pub(super) async fn run(config: &Config, client: &Client, mut conversation: Conversation) -> Result<()> {
    let mut editor = DefaultEditor::new()?;
    let history = config.daemon.home.join("history");
    // There is none at the first time.
    let _ = editor.load_history(&history);
    eprintln!("/? for help, /bye to leave");
    while let Some(input) = read(&mut editor)? {
        let text = input.trim();
        if text.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(text);
        let done = if let Some(command) = text.strip_prefix('/') {
            instruct(client, &mut conversation, command).await
        } else {
            tokio::select! {
                done = conversation.say(client, text) => done.map(|()| Next::On),
                // Dropping the request cancels the generation.
                _ = tokio::signal::ctrl_c() => {
                    println!();
                    Ok(Next::On)
                }
            }
        };
        match done {
            Ok(Next::On) => {}
            Ok(Next::Leave) => break,
            Err(error) => eprintln!("Error: {error:#}"),
        }
    }
    if let Err(error) = editor.save_history(&history) {
        eprintln!("the history was not saved: {error}");
    }
    Ok(())
}

/// A line, or several between `"""`; `None` at the end.
fn read(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { ">>> " } else { "... " };
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(/bye or Ctrl+D leaves)");
                return Ok(Some(String::new()));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&line);
        let Some(opened) = text.strip_prefix("\"\"\"") else { return Ok(Some(text)) };
        if let Some(inner) = opened.trim_end().strip_suffix("\"\"\"") {
            return Ok(Some(inner.to_owned()));
        }
    }
}

async fn instruct(client: &Client, conversation: &mut Conversation, command: &str) -> Result<Next> {
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match word {
        "bye" | "exit" | "quit" => return Ok(Next::Leave),
        "help" | "?" => println!("{HELP}"),
        "clear" => {
            conversation.messages.retain(|message| message.role == "system");
            eprintln!("the conversation is forgotten");
        }
        "set" => set(conversation, rest.trim())?,
        "show" => show(client, conversation, rest.trim()).await?,
        other => eprintln!("/{other} is not a command; /? lists them"),
    }
    Ok(Next::On)
}

fn set(conversation: &mut Conversation, rest: &str) -> Result<()> {
    let (what, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    match what {
        "parameter" => {
            let (name, value) = value.trim().split_once(char::is_whitespace).unwrap_or((value.trim(), ""));
            let value: Value = serde_json::from_str(value.trim()).unwrap_or_else(|_| value.trim().into());
            let mut options = conversation.options.clone();
            options.insert(name.to_owned(), value);
            let (_, unknown) = Options::read(&options).map_err(anyhow::Error::msg)?;
            anyhow::ensure!(unknown.is_empty(), "parameter `{name}` is not known");
            conversation.options = options;
        }
        "system" => {
            conversation.messages.retain(|message| message.role != "system");
            conversation.messages.insert(0, message("system", value.trim()));
        }
        "verbose" => conversation.verbose = true,
        "quiet" => conversation.verbose = false,
        _ => eprintln!("{HELP}"),
    }
    Ok(())
}

async fn show(client: &Client, conversation: &Conversation, what: &str) -> Result<()> {
    let request = ShowRequest { model: conversation.model.clone(), ..ShowRequest::default() };
    let shown: ShowResponse = client.post("/api/show", &request).await?;
    match what {
        "" | "info" => println!("{}", serde_json::to_string_pretty(&shown.details)?),
        "modelfile" => println!("{}", shown.modelfile),
        "parameters" => println!("{}\n{}", shown.parameters, serde_json::to_string_pretty(&conversation.options)?),
        "system" => println!("{}", shown.system),
        "template" => println!("{}", shown.template),
        "license" => println!("{}", shown.license),
        other => eprintln!("/show {other} is not known; /? lists what is"),
    }
    Ok(())
}
