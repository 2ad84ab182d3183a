//! One turn of a conversation: sends the message, prints the answer as it arrives, and reports its
//! speed.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use anyhow::{Result, ensure};
use api::ollama::AnswerMessage;
use protocol::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::text::{columns, plain};
use super::typesetter::{Setting, Typesetter};

/// A conversation with a model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the session")]
pub(super) struct Conversation {
    pub(super) model: String,
    pub(super) messages: Vec<Message>,
    /// Options that the session sets.
    pub(super) options: Map<String, Value>,
    pub(super) keep_alive: Option<String>,
    /// Print counts and rates after each answer.
    pub(super) verbose: bool,
    /// Required format of answers, if any: `json` or a schema.
    pub(super) format: Option<Value>,
    /// Whether and how much to think, if it is set.
    pub(super) think: Option<Value>,
    /// Whether to hide the model's reasoning.
    pub(super) hides_thinking: bool,
    /// Whether to wrap lines of answers at words.
    pub(super) wraps: bool,
    /// Whether to show Markdown as text styles.
    pub(super) styles: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatLine {
    message: Option<AnswerMessage>,
    done: bool,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
    prompt_eval_duration: u64,
    prompt_truncated_count: u64,
    eval_count: u64,
    eval_duration: u64,
}

/// Creates a message of a conversation.
pub(super) fn message(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.to_owned(), content: content.into(), rest: Map::new() }
}

impl Conversation {
    /// Sends a message of the user and prints the answer as it arrives. Adds both to the
    /// conversation.
    pub(super) async fn say(&mut self, client: &Client, question: Message) -> Result<()> {
        // The question joins the conversation only with its answer, so an interrupted turn leaves
        // no trace.
        let messages: Vec<&Message> = self.messages.iter().chain([&question]).collect();
        let mut request = json!({"model": self.model, "messages": messages, "options": self.options});
        let keep_alive = self.keep_alive.as_deref().map(Value::from);
        for (name, value) in
            [("keep_alive", keep_alive), ("format", self.format.clone()), ("think", self.think.clone())]
        {
            if let Some(value) = value {
                request[name] = value;
            }
        }
        let mut answer = Printer::new(self);
        let mut last = ChatLine::default();
        let told = client.lines("/api/chat", &request, |line: ChatLine| {
            if let Some(message) = &line.message {
                answer.print(message)?;
            }
            if line.done {
                last = line;
            }
            Ok(())
        });
        let result = told.await;
        answer.end()?;
        result?;
        ensure!(last.done, "the answer broke off");
        self.messages.extend([question, message("assistant", answer.text)]);
        if last.prompt_truncated_count > 0 {
            eprintln!("({} tokens of the conversation did not fit into the context)", last.prompt_truncated_count);
        }
        if self.verbose {
            timing(&last);
        }
        Ok(())
    }

    /// Returns the system prompt of the session.
    pub(super) fn system(&self) -> Option<&str> {
        self.messages.iter().find(|message| message.role == "system").map(|message| message.content.as_str())
    }

    /// Loads the model without sending a message.
    pub(super) async fn load(&self, client: &Client) -> Result<()> {
        let request = json!({"model": self.model, "options": self.options, "stream": false});
        client.post::<Value>("/api/generate", &request).await.map(drop)
    }
}

/// Prints an answer as it arrives, with the reasoning before it set apart. On a terminal it wraps
/// lines and renders Markdown; files and other programs receive the answer unchanged.
#[derive(Debug)]
struct Printer {
    hides_thinking: bool,
    is_thinking: bool,
    /// The answer so far.
    text: String,
    thought: Option<Typesetter>,
    answer: Option<Typesetter>,
}

impl Printer {
    fn new(conversation: &Conversation) -> Self {
        let on_terminal = std::io::stdout().is_terminal();
        let columns = conversation.wraps.then(columns).flatten();
        let setting = |styled| on_terminal.then(|| Typesetter::new(Setting { columns, styled }));
        Self {
            hides_thinking: conversation.hides_thinking,
            is_thinking: false,
            text: String::new(),
            thought: setting(false),
            answer: setting(conversation.styles),
        }
    }

    fn print(&mut self, message: &AnswerMessage) -> Result<()> {
        if !message.thinking.is_empty() && !self.hides_thinking {
            if !self.is_thinking {
                println!("Thinking...");
            }
            self.is_thinking = true;
            print!("{}", set(&mut self.thought, &message.thinking));
        }
        if !message.content.is_empty() {
            if std::mem::take(&mut self.is_thinking) {
                print!("{}\n...done thinking.\n\n", ended(&mut self.thought));
            }
            print!("{}", set(&mut self.answer, &message.content));
            self.text.push_str(&message.content);
        }
        Ok(std::io::stdout().flush()?)
    }

    /// Prints the text that is held back, and ends the line.
    fn end(&mut self) -> Result<()> {
        println!("{}{}", ended(&mut self.thought), ended(&mut self.answer));
        Ok(std::io::stdout().flush()?)
    }
}

fn set<'t>(typesetter: &mut Option<Typesetter>, text: &'t str) -> Cow<'t, str> {
    match typesetter {
        Some(typesetter) => typesetter.push(&plain(text)).into(),
        None => text.into(),
    }
}

fn ended(typesetter: &mut Option<Typesetter>) -> String {
    typesetter.as_mut().map(Typesetter::end).unwrap_or_default()
}

fn timing(line: &ChatLine) {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let rate = |count: u64, nanos: u64| if nanos == 0 { 0.0 } else { count as f64 / seconds(nanos) };
    eprintln!();
    eprintln!("total duration:       {:.6}s", seconds(line.total_duration));
    eprintln!("load duration:        {:.6}s", seconds(line.load_duration));
    eprintln!("prompt eval count:    {} token(s)", line.prompt_eval_count);
    eprintln!("prompt eval duration: {:.6}s", seconds(line.prompt_eval_duration));
    eprintln!("prompt eval rate:     {:.2} tokens/s", rate(line.prompt_eval_count, line.prompt_eval_duration));
    eprintln!("eval count:           {} token(s)", line.eval_count);
    eprintln!("eval duration:        {:.6}s", seconds(line.eval_duration));
    eprintln!("eval rate:            {:.2} tokens/s", rate(line.eval_count, line.eval_duration));
}
