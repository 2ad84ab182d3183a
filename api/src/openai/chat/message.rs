//! Messages of a chat request.

use std::collections::HashMap;

use protocol::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Refusal;
use crate::openai::content::Content;
use crate::openai::tools;
use crate::pictures::Pictures;

/// A message as `OpenAI`'s clients send it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "OpenAiMessage")]
pub struct ChatMessage {
    role: String,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Option<Vec<Call>>,
    tool_call_id: Option<String>,
    /// Reasoning of the model; the field name that Ollama uses.
    reasoning: Option<String>,
    /// Reasoning of the model; the field name that other servers use.
    reasoning_content: Option<String>,
    /// Deprecated predecessor of `tool_calls`; refused.
    function_call: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "OpenAiCall")]
struct Call {
    id: String,
    function: Function,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "OpenAiFunction")]
struct Function {
    name: String,
    arguments: String,
}

/// Converts messages to the form that templates expect. A tool's answer has the id of its call;
/// templates need the tool's name. An answer without `name` gets it from an earlier call with that
/// id. The pictures are added to `pictures`.
pub(super) fn messages(given: Vec<ChatMessage>, pictures: &mut Pictures) -> Result<Vec<Message>, Refusal> {
    let mut names = HashMap::new();
    let mut all = Vec::with_capacity(given.len());
    for (at, message) in given.into_iter().enumerate() {
        for call in message.tool_calls.iter().flatten() {
            names.insert(call.id.clone(), call.function.name.clone());
        }
        all.push(message.translate(&format!("messages[{at}]"), &names, pictures)?);
    }
    Ok(all)
}

impl ChatMessage {
    fn translate(
        self,
        path: &str,
        names: &HashMap<String, String>,
        pictures: &mut Pictures,
    ) -> Result<Message, Refusal> {
        let role = match self.role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" | "function" => "tool",
            other => {
                return Err(Refusal::new(
                    format!("{path}.role"),
                    format!("`{other}` is no role; expected system, developer, user, assistant or tool"),
                ));
            }
        };
        if self.function_call.is_some_and(|call| !call.is_null()) {
            return Err(Refusal::new(
                format!("{path}.function_call"),
                "function_call is not supported; use tool_calls",
            ));
        }
        let mut rest = Map::new();
        let called = self.tool_call_id.as_ref().and_then(|id| names.get(id)).cloned();
        if let Some(name) = self.name.or(called) {
            rest.insert("name".to_owned(), name.into());
        }
        if let Some(id) = self.tool_call_id {
            rest.insert("tool_call_id".to_owned(), id.into());
        }
        if let Some(thinking) = self.reasoning.or(self.reasoning_content).filter(|text| !text.is_empty()) {
            insert_reasoning(&mut rest, thinking);
        }
        if let Some(calls) = self.tool_calls.filter(|calls| !calls.is_empty()) {
            let calls: Result<Vec<Value>, Refusal> =
                calls.into_iter().enumerate().map(|(at, call)| call.translate(path, at)).collect();
            rest.insert("tool_calls".to_owned(), calls?.into());
        }
        let content = self.content.map(|content| content.text(&format!("{path}.content"), pictures)).transpose()?;
        if content.is_none() && !rest.contains_key("tool_calls") {
            return Err(Refusal::new(format!("{path}.content"), "a message needs content, or tool calls"));
        }
        Ok(Message { role: role.to_owned(), content: content.unwrap_or_default(), rest })
    }
}

impl Call {
    fn translate(self, path: &str, at: usize) -> Result<Value, Refusal> {
        let path = format!("{path}.tool_calls[{at}].function");
        if self.function.name.is_empty() {
            return Err(Refusal::new(format!("{path}.name"), "a call needs the name of the function"));
        }
        let arguments = tools::arguments(&self.function.arguments, &format!("{path}.arguments"))?;
        Ok(tools::call(&self.id, &self.function.name, arguments))
    }
}

/// Stores reasoning under both names that templates read; each template reads one of them.
pub(in crate::openai) fn insert_reasoning(rest: &mut Map<String, Value>, text: String) {
    rest.insert("reasoning_content".to_owned(), text.clone().into());
    rest.insert("thinking".to_owned(), text.into());
}
