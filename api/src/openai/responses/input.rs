//! `input`: a text or the items of the conversation so far.

use std::collections::HashMap;

use protocol::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Refusal;
use crate::openai::chat::insert_reasoning;
use crate::openai::content::Content;
use crate::openai::tools;
use crate::pictures::Pictures;

use super::tools::joined;

/// Item types of tools that Lode does not offer. They occur in conversations that began on another
/// server, and are skipped.
const SKIPPED_ITEMS: &[&str] = &[
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// A text or a list of items.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected input that is a string or a list of items")]
#[schemars(rename = "ResponseInput")]
pub(super) enum Input {
    /// A message of the user.
    Text(String),
    /// Items, in order.
    Items(Vec<Item>),
}

/// An input item of any type, with the union of their fields.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ResponseInputItem")]
pub(super) struct Item {
    /// Item type. An item without a type is a message.
    #[serde(rename = "type")]
    kind: Option<String>,
    role: String,
    content: Option<Content>,
    summary: Option<Content>,
    call_id: String,
    name: String,
    namespace: Option<String>,
    arguments: String,
    /// Input of a `custom` tool call: text.
    input: String,
    output: Option<Content>,
}

/// Converts items to messages in the form that templates expect. Calls join the preceding assistant
/// message; reasoning joins the following one.
pub(super) fn messages(
    input: Input,
    instructions: Option<String>,
    pictures: &mut Pictures,
) -> Result<Vec<Message>, Refusal> {
    let mut conversation =
        Conversation { messages: Vec::new(), thinking: String::new(), names: HashMap::new(), pictures };
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        conversation.say("system", instructions);
    }
    match input {
        Input::Text(text) => conversation.say("user", text),
        Input::Items(items) => {
            for (at, item) in items.into_iter().enumerate() {
                conversation.take(item, &format!("input[{at}]"))?;
            }
        }
    }
    Ok(conversation.messages)
}

#[derive(Debug)]
struct Conversation<'a> {
    messages: Vec<Message>,
    /// Reasoning for the next assistant message.
    thinking: String,
    /// Function names by call id.
    names: HashMap<String, String>,
    pictures: &'a mut Pictures,
}

impl Conversation<'_> {
    fn say(&mut self, role: &str, content: String) {
        let mut rest = Map::new();
        if role == "assistant" && !self.thinking.is_empty() {
            insert_reasoning(&mut rest, std::mem::take(&mut self.thinking));
        }
        self.messages.push(Message { role: role.to_owned(), content, rest });
    }

    fn take(&mut self, item: Item, path: &str) -> Result<(), Refusal> {
        match item.kind.as_deref() {
            None | Some("message") => self.message(item, path),
            Some("reasoning") => {
                let content = item.content.or(item.summary);
                let text = content.map(|content| content.text(&format!("{path}.content"), self.pictures));
                self.thinking = text.transpose()?.unwrap_or_default();
                Ok(())
            }
            Some("function_call") => {
                let arguments = tools::arguments(&item.arguments, &format!("{path}.arguments"))?;
                self.call(&item, arguments, path)
            }
            Some("custom_tool_call") => {
                let input = Map::from_iter([("input".to_owned(), item.input.clone().into())]);
                self.call(&item, input, path)
            }
            Some("function_call_output" | "custom_tool_call_output") => self.output(item, path),
            Some(kind) if SKIPPED_ITEMS.contains(&kind) => Ok(()),
            Some("item_reference") => {
                Err(Refusal::new(path, "nothing is stored here that an item could refer to; send the item itself"))
            }
            Some(other) => Err(Refusal::new(
                format!("{path}.type"),
                format!(
                    "items of type `{other}` are not supported; expected message, reasoning, function_call or \
                     function_call_output"
                ),
            )),
        }
    }

    fn message(&mut self, item: Item, path: &str) -> Result<(), Refusal> {
        let role = match item.role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            other => {
                return Err(Refusal::new(
                    format!("{path}.role"),
                    format!("`{other}` is no role; expected system, developer, user or assistant"),
                ));
            }
        };
        let Some(content) = item.content else {
            return Err(Refusal::new(format!("{path}.content"), "a message needs content"));
        };
        let content = content.text(&format!("{path}.content"), self.pictures)?;
        self.say(role, content);
        Ok(())
    }

    fn call(&mut self, item: &Item, arguments: Map<String, Value>, path: &str) -> Result<(), Refusal> {
        if item.name.is_empty() {
            return Err(Refusal::new(format!("{path}.name"), "a call needs the name of the function"));
        }
        let name = joined(item.namespace.as_deref(), &item.name);
        self.names.insert(item.call_id.clone(), name.clone());
        if self.messages.last().is_none_or(|message| message.role != "assistant") {
            self.say("assistant", String::new());
        }
        let calls = self.messages.last_mut().map(|message| message.rest.entry("tool_calls"));
        if let Some(Value::Array(calls)) = calls.map(|calls| calls.or_insert_with(|| Value::Array(Vec::new()))) {
            calls.push(tools::call(&item.call_id, &name, arguments));
        }
        Ok(())
    }

    fn output(&mut self, item: Item, path: &str) -> Result<(), Refusal> {
        let Some(output) = item.output else {
            return Err(Refusal::new(format!("{path}.output"), "the result of a call needs its output"));
        };
        let mut rest = Map::new();
        if let Some(name) = self.names.get(&item.call_id) {
            rest.insert("name".to_owned(), name.clone().into());
        }
        rest.insert("tool_call_id".to_owned(), item.call_id.into());
        let content = output.text(&format!("{path}.output"), self.pictures)?;
        self.messages.push(Message { role: "tool".to_owned(), content, rest });
        Ok(())
    }
}
