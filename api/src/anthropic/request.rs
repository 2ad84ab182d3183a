//! The request for a message.

use std::collections::HashMap;

use protocol::{Format, Message, ToolChoice};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Limits;
use super::content::{Content, Piece};
use crate::ollama::{KeepAliveSpec, Options, Think};
use crate::pictures::{JoinedText, Pictures};
use crate::{ChatInput, GenerationOptions, Refusal};

/// Body of `POST /v1/messages`. `POST /v1/messages/count_tokens` takes the same body and ignores
/// the fields about the response.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Anthropic's")]
pub struct MessagesRequest {
    pub model: String,
    messages: Vec<Turn>,
    system: Option<Content>,
    pub max_tokens: Option<u64>,
    pub stream: Option<bool>,
    pub stop_sequences: Option<Vec<String>>,
    pub temperature: Option<f64>,
    pub top_k: Option<i64>,
    pub top_p: Option<f64>,
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    pub tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// Lode extension: Ollama's options. Anthropic's own fields take precedence over them.
    #[schemars(with = "Option<Options>")]
    pub options: Option<Map<String, Value>>,
    /// Lode extension: how long the model stays loaded, as in Ollama's API.
    pub keep_alive: Option<KeepAliveSpec>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicTurn")]
struct Turn {
    role: String,
    content: Option<Content>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicToolChoice")]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    disable_parallel_tool_use: bool,
}

/// Extended thinking. The value of `budget_tokens` has no effect: templates only know whether to
/// think.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicThinking")]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<u64>,
}

impl Thinking {
    /// True if a model that cannot think may answer without thinking. Only `enabled` with a budget
    /// requires thinking, because coding agents send `adaptive` to every model.
    fn is_optional(&self) -> bool {
        self.kind != "enabled" || self.budget_tokens.is_none()
    }
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicOutputConfig")]
struct OutputConfig {
    effort: Option<String>,
    format: Option<OutputFormat>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicOutputFormat")]
struct OutputFormat {
    #[serde(rename = "type")]
    kind: String,
    schema: Option<Value>,
}

impl MessagesRequest {
    /// True if the response is a stream.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Returns the limits that the request sets on its response.
    pub fn limits(&self) -> Limits {
        Limits { tokens: self.max_tokens.unwrap_or(0), stops: self.stop_sequences.clone().unwrap_or_default() }
    }

    /// Converts the request to a conversation and its generation options.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(ChatInput, GenerationOptions), Refusal> {
        match self.max_tokens {
            None => return Err(Refusal::new("max_tokens", "Field required")),
            Some(0) => return Err(Refusal::new("max_tokens", "max_tokens is 0, expected at least 1")),
            Some(_) => {}
        }
        let demand = self.demand()?;
        let (dialogue, tool_choice) = self.dialogue()?;
        Ok((dialogue, GenerationOptions { tool_choice, ..demand }))
    }

    /// Returns the conversation whose tokens are counted.
    ///
    /// # Errors
    /// As [`translate`](Self::translate).
    pub fn count(self) -> Result<ChatInput, Refusal> {
        Ok(self.dialogue()?.0)
    }

    fn demand(&self) -> Result<GenerationOptions, Refusal> {
        let (given, unknown_options) = Options::of_field(self.options.as_ref())?;
        let mut stop = self.stop_sequences.clone();
        if let Some(all) = &mut stop {
            all.retain(|text| !text.is_empty());
        }
        let options = Options {
            temperature: unit("temperature", self.temperature)?,
            top_p: unit("top_p", self.top_p)?,
            top_k: self.top_k,
            stop,
            num_predict: self.max_tokens.map(|count| i64::try_from(count).unwrap_or(i64::MAX)),
            ..Options::default()
        };
        let options = options.over(given);
        Ok(GenerationOptions {
            // As in OpenAI's API, a prompt that does not fit is refused unless the request sets
            // `num_ctx`.
            refuse_long_prompts: options.num_ctx.is_none(),
            options,
            unknown_options,
            format: self.format()?,
            one_tool_call: self.tool_choice.as_ref().is_some_and(|choice| choice.disable_parallel_tool_use),
            keep_alive: self.keep_alive,
            ..GenerationOptions::of_openai()
        })
    }

    fn format(&self) -> Result<Option<Format>, Refusal> {
        let Some(format) = self.output_config.as_ref().and_then(|config| config.format.as_ref()) else {
            return Ok(None);
        };
        if format.kind != "json_schema" {
            let message = format!("`{}` is no format; expected json_schema", format.kind);
            return Err(Refusal::new("output_config.format.type", message));
        }
        match &format.schema {
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(Format::Schema { schema: schema.clone() })),
            _ => Err(Refusal::new("output_config.format.schema", "a JSON schema is an object")),
        }
    }

    fn dialogue(self) -> Result<(ChatInput, ToolChoice), Refusal> {
        let think = think(self.thinking.as_ref(), self.output_config.as_ref())?;
        let thinking_is_optional = self.thinking.as_ref().is_none_or(Thinking::is_optional);
        let (tools, omitted_tools) = tools(self.tools.as_deref().unwrap_or_default())?;
        let (tools, choice) = choose(tools, self.tool_choice.as_ref())?;
        if self.messages.is_empty() {
            return Err(Refusal::new("messages", "at least one message is required"));
        }
        let mut conversation = Conversation::default();
        if let Some(system) = self.system {
            let text = system.text("system")?;
            if !text.is_empty() {
                conversation.say("system", text, Map::new());
            }
        }
        for (at, turn) in self.messages.into_iter().enumerate() {
            conversation.take(turn, &format!("messages.{at}"))?;
        }
        let Conversation { messages, pictures, .. } = conversation;
        let pictures = pictures.into_files();
        let dialogue =
            ChatInput { messages, tools, think, thinking_is_optional, omitted_tools, pictures, ..ChatInput::default() };
        Ok((dialogue, choice))
    }
}

fn unit(name: &str, value: Option<f64>) -> Result<Option<f32>, Refusal> {
    match value {
        Some(value) if !(0.0..=1.0).contains(&value) => {
            Err(Refusal::new(name, format!("{name} is {value}, expected 0 to 1")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Converts `thinking` and `output_config.effort`. An effort sets the amount of thinking, but does
/// not enable it.
fn think(thinking: Option<&Thinking>, config: Option<&OutputConfig>) -> Result<Option<Think>, Refusal> {
    let effort = config.and_then(|config| config.effort.as_deref());
    match thinking.map(|thinking| thinking.kind.as_str()) {
        None => Ok(None),
        Some("disabled") => Ok(Some(Think::Flag(false))),
        Some("enabled" | "adaptive" | "between_tools") => match effort {
            None => Ok(Some(Think::Flag(true))),
            Some("xhigh" | "max") => Ok(Some(Think::Level("max".to_owned()))),
            Some(level @ ("low" | "medium" | "high")) => Ok(Some(Think::Level(level.to_owned()))),
            Some(other) => Err(Refusal::new("output_config.effort", format!("`{other}` is no effort"))),
        },
        Some(other) => {
            let message = format!("`{other}` is no kind of thinking; expected enabled, disabled or adaptive");
            Err(Refusal::new("thinking.type", message))
        }
    }
}

/// Returns the tools in the form that templates expect, and the types of the omitted tools. Tools
/// with a type of Anthropic are omitted: Anthropic defines their input and runs some of them on its
/// servers.
fn tools(given: &[Value]) -> Result<(Vec<Value>, Vec<String>), Refusal> {
    let (mut offered, mut omitted) = (Vec::new(), Vec::new());
    for (at, tool) in given.iter().enumerate() {
        match tool.get("type") {
            None | Some(Value::Null) => offered.push(nested(at, tool)?),
            Some(Value::String(kind)) if kind == "custom" => offered.push(nested(at, tool)?),
            Some(Value::String(kind)) => omitted.push(kind.clone()),
            Some(other) => {
                let message = format!("the type of a tool is {other}, expected a string");
                return Err(Refusal::new(format!("tools.{at}.type"), message));
            }
        }
    }
    Ok((offered, omitted))
}

/// Converts a tool to the form that templates expect.
fn nested(at: usize, tool: &Value) -> Result<Value, Refusal> {
    let param = |field: &str| format!("tools.{at}.{field}");
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err(Refusal::new(param("name"), "a tool needs a name"));
    };
    let Some(schema) = tool.get("input_schema").filter(|schema| schema.is_object()) else {
        return Err(Refusal::new(param("input_schema"), "a tool needs a JSON schema of its input"));
    };
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = tool["description"].as_str() {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), schema.clone());
    Ok(json!({"type": "function", "function": function}))
}

fn choose(tools: Vec<Value>, choice: Option<&Choice>) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    let Some(choice) = choice else { return Ok((tools, ToolChoice::Auto)) };
    let refuse = |field: &str, message: String| Err(Refusal::new(format!("tool_choice.{field}"), message));
    match choice.kind.as_str() {
        "auto" => Ok((tools, ToolChoice::Auto)),
        "none" => Ok((Vec::new(), ToolChoice::None)),
        "any" if tools.is_empty() => refuse("type", "a call is required, but there are no tools".to_owned()),
        "any" => Ok((tools, ToolChoice::Required)),
        "tool" if tools.iter().any(|tool| tool["function"]["name"] == choice.name) => {
            Ok((tools, ToolChoice::Named { name: choice.name.clone() }))
        }
        "tool" => refuse("name", format!("`{}` is not among the tools", choice.name)),
        other => refuse("type", format!("`{other}` is no choice; expected auto, any, tool or none")),
    }
}

#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Tool names by call id.
    names: HashMap<String, String>,
    pictures: Pictures,
}

impl Conversation {
    fn say(&mut self, role: &str, content: String, rest: Map<String, Value>) {
        self.messages.push(Message { role: role.to_owned(), content, rest });
    }

    /// Returns the text of a tool's result, with the marks of its pictures.
    fn result(&mut self, content: Vec<Piece>) -> String {
        let mut joined = JoinedText::default();
        for piece in content {
            match piece {
                Piece::Text(text) => joined.push_text(&text),
                Piece::Picture(file) => joined.push_mark(&self.pictures.add(file)),
                _ => {}
            }
        }
        joined.into_text()
    }

    /// Converts a turn to a message. Tool results become separate messages before the text of the
    /// turn.
    fn take(&mut self, turn: Turn, path: &str) -> Result<(), Refusal> {
        let role = match turn.role.as_str() {
            role @ ("user" | "assistant" | "system") => role.to_owned(),
            other => {
                let message = format!("`{other}` is no role; expected user or assistant");
                return Err(Refusal::new(format!("{path}.role"), message));
            }
        };
        let Some(content) = turn.content else {
            return Err(Refusal::new(format!("{path}.content"), "Field required"));
        };
        let (mut text, mut thinking, mut calls, mut results) =
            (JoinedText::default(), String::new(), Vec::new(), false);
        let mut is_empty = true;
        for piece in content.pieces(&format!("{path}.content"))? {
            match piece {
                Piece::Text(own) => {
                    is_empty = false;
                    text.push_text(&own);
                }
                Piece::Picture(file) => {
                    is_empty = false;
                    text.push_mark(&self.pictures.add(file));
                }
                Piece::Thinking(text) => thinking.push_str(&text),
                Piece::Call { id, name, call } => {
                    self.names.insert(id, name);
                    calls.push(call);
                }
                Piece::Result { id, content } => {
                    results = true;
                    let mut rest = Map::new();
                    if let Some(name) = self.names.get(&id) {
                        rest.insert("name".to_owned(), name.clone().into());
                    }
                    rest.insert("tool_call_id".to_owned(), id.into());
                    let text = self.result(content);
                    self.say("tool", text, rest);
                }
                Piece::Nothing => {}
            }
        }
        let mut rest = Map::new();
        if !thinking.is_empty() {
            // Templates read one of these two names.
            rest.insert("reasoning_content".to_owned(), thinking.clone().into());
            rest.insert("thinking".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            rest.insert("tool_calls".to_owned(), calls.into());
        }
        if !(results && is_empty) {
            self.say(&role, text.into_text(), rest);
        }
        Ok(())
    }
}
