//! The interactive session of `lode run`.

mod command;
mod prompts;

use anyhow::{Result, ensure};
use api::ollama::{CreateRequest, Progress, ShowRequest, ShowResponse};

use super::chat::{Conversation, message};
use super::client::Client;
use super::pictures::{PicturePrompt, begins_with_picture};
use super::quiet::Quiet;
use super::text::{plain_for_terminal, tell_error};
use super::{show, transfer};
use crate::config::Config;
use command::{SessionCommand, Setting, ShownPart};
use prompts::Prompts;

const HELP: &str = "\
Commands
  /set parameter NAME VALUE      /set parameter temperature 0
  /set system TEXT               /set system \"You answer in one sentence.\"
  /set think [LEVEL], nothink    whether, or how much, the model thinks first
  /set format json, noformat     the answer is JSON; a schema goes, too
  /set history [on|off]          keep what is typed for the next session, or not
  /set wordwrap [on|off]         wrap at words, or leave it to the terminal
  /set verbose [on|off]          print counts and rates after answers, or not
  /show [info|modelfile|parameters|system|template|license]
  /load NAME                     go on with another model, from the beginning
  /save NAME                     keep model, settings and conversation as NAME
  /clear                         forget the conversation
  /help, /?                      this text
  /bye                           leave (also Ctrl+D)

\"\"\" begins and ends a message of several lines. Ctrl+C ends an answer.
Arrow up brings back what was typed; Ctrl+R searches in it.";

pub(super) async fn run(config: &Config, client: &Client, mut conversation: Conversation) -> Result<()> {
    let mut prompts = Prompts::open(config.daemon.home.join("prompts"))?;
    note_of_base(&shown(client, &conversation.model).await?, &conversation.model);
    eprintln!("/? for help, /bye to leave");
    while let Some(input) = prompts.read()? {
        let text = input.trim();
        if text.is_empty() {
            continue;
        }
        let command = text.strip_prefix('/').filter(|_| !begins_with_picture(text));
        let done = match command.map(command::parse) {
            Some(Ok(SessionCommand::Leave)) => break,
            Some(Ok(SessionCommand::Set(Setting::History(on)))) => {
                prompts.set_kept(on);
                told(if on { "what is typed is kept" } else { "what is typed is not kept" });
                Ok(())
            }
            Some(Ok(command)) => interruptible(obey(client, &mut conversation, command)).await,
            Some(Err(error)) => {
                eprintln!("{error}");
                Ok(())
            }
            None => {
                let _quiet = Quiet::begin();
                let prompt = PicturePrompt::of_text(command::without_block_quotes(text));
                match prompt.into_message() {
                    Ok(question) => interruptible(conversation.say(client, question)).await,
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = done {
            tell_error(&error);
        }
    }
    Ok(())
}

/// Runs a request until it ends or the user interrupts it. Dropping the future cancels the request.
async fn interruptible(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            println!();
            Ok(())
        }
    }
}

/// Reports what was done.
fn told(what: &str) {
    eprintln!("({what})");
}

async fn obey(client: &Client, conversation: &mut Conversation, command: SessionCommand) -> Result<()> {
    match command {
        // The caller handles these two: one ends the session, the other changes the prompt history.
        SessionCommand::Leave | SessionCommand::Set(Setting::History(_)) => {}
        SessionCommand::Help => println!("{HELP}"),
        SessionCommand::Clear => {
            conversation.messages.retain(|message| message.role == "system");
            told("the conversation is cleared");
        }
        SessionCommand::Set(setting) => set(conversation, setting),
        SessionCommand::Show(part) => show(client, conversation, part).await?,
        SessionCommand::Load(name) => load(client, conversation, name).await?,
        SessionCommand::Save(name) => save(client, conversation, name).await?,
    }
    Ok(())
}

fn set(conversation: &mut Conversation, setting: Setting) {
    match setting {
        Setting::Parameter { name, value } => {
            told(&format!("{name} is {value}"));
            conversation.options.insert(name, value);
        }
        Setting::System(text) => {
            conversation.messages.retain(|message| message.role != "system");
            if text.is_empty() {
                return told("there is no system prompt but the model's own");
            }
            conversation.messages.insert(0, message("system", text));
            told("the system prompt is set; /clear makes the model forget what was said before");
        }
        Setting::Think(think) => {
            told(&format!("think is {think}"));
            conversation.think = Some(think);
        }
        Setting::Format(format) => {
            told(if format.is_some() { "answers are JSON" } else { "answers are any text" });
            conversation.format = format;
        }
        Setting::WordWrap(on) => {
            told(if on { "lines are wrapped at words" } else { "the terminal breaks lines" });
            conversation.wraps = on;
        }
        Setting::Verbose(on) => {
            told(if on { "counts and rates are printed" } else { "counts and rates are not printed" });
            conversation.verbose = on;
        }
        Setting::History(_) => {}
    }
}

/// Warns if a model has no chat template, because its answers would be a surprise.
fn note_of_base(shown: &ShowResponse, model: &str) {
    if shown.only_completes {
        eprintln!("{model} has no chat template: it completes text, it does not chat");
    }
}

async fn shown(client: &Client, model: &str) -> Result<ShowResponse> {
    let request = ShowRequest { model: model.to_owned(), ..ShowRequest::default() };
    client.post("/api/show", &request).await
}

async fn show(client: &Client, conversation: &Conversation, part: ShownPart) -> Result<()> {
    let shown = shown(client, &conversation.model).await?;
    let text = match part {
        ShownPart::Info => {
            show::overview(&shown);
            return Ok(());
        }
        ShownPart::Modelfile => shown.modelfile,
        ShownPart::Parameters => parameters(&shown.parameters, conversation),
        ShownPart::System => conversation.system().map_or(shown.system, str::to_owned),
        ShownPart::Template => shown.template,
        ShownPart::License => shown.license,
    };
    match text.trim_end_matches('\n') {
        "" => eprintln!("(the model has none)"),
        text => println!("{}", plain_for_terminal(text)),
    }
    Ok(())
}

/// Returns the parameters of the model and of the session.
fn parameters(of_model: &str, conversation: &Conversation) -> String {
    let mut lines = Vec::new();
    if !of_model.is_empty() {
        lines.extend(["Of the model:".to_owned(), of_model.trim_end().to_owned()]);
    }
    if !conversation.options.is_empty() {
        lines.push("Of this session:".to_owned());
        lines.extend(conversation.options.iter().map(|(name, value)| format!("{name:<30} {value}")));
    }
    lines.join("\n")
}

/// Switches to another model with an empty conversation. If the load fails, the current model
/// stays.
async fn load(client: &Client, conversation: &mut Conversation, name: String) -> Result<()> {
    transfer::fetch_missing(client, &name, true).await?;
    let mut other = Conversation { model: name, ..conversation.clone() };
    other.messages.retain(|message| message.role == "system");
    other.load(client).await?;
    told(&format!("{} is loaded; the conversation begins anew", other.model));
    note_of_base(&shown(client, &other.model).await?, &other.model);
    *conversation = other;
    Ok(())
}

/// Creates a model from the current one, the settings of the session and its messages.
async fn save(client: &Client, conversation: &Conversation, name: String) -> Result<()> {
    let own = shown(client, &conversation.model).await?.messages;
    let said = conversation.messages.iter().filter(|message| message.role != "system").cloned();
    let request = CreateRequest {
        model: name.clone(),
        from: Some(conversation.model.clone()),
        system: conversation.system().map(str::to_owned),
        parameters: conversation.options.clone(),
        messages: own.into_iter().chain(said).collect(),
        stream: Some(true),
        ..CreateRequest::default()
    };
    let mut last = String::new();
    let created = client.lines("/api/create", &request, |line: Progress| {
        last = line.status;
        Ok(())
    });
    created.await?;
    ensure!(last == "success", "the create broke off after `{last}`");
    told(&format!("saved as {name}; `lode run {name}` continues from here"));
    Ok(())
}
