//! Completes messages for templates, independent of the client's API.
//!
//! APIs differ in the fields of a message. The arguments of a call are text or an object, a tool's
//! answer names the tool or the call, and thinking has two names. Templates expect the strictest
//! form, so missing fields are added. Existing fields stay unchanged, except for the form of
//! arguments, and for ids if the template accepts only a special form.

use protocol::Message;
use serde_json::{Map, Value};

/// Length of call ids in Mistral's templates, which refuse other lengths.
const MISTRAL_ID: usize = 9;

/// Completes the messages for a template with this text.
pub(super) fn complete(messages: &[Message], template: &str) -> Vec<Message> {
    let mut calls = Calls { short: template.contains("[TOOL_CALLS]"), ..Calls::default() };
    messages.iter().cloned().map(|message| calls.complete(message)).collect()
}

/// The calls so far.
#[derive(Default)]
struct Calls {
    /// Whether ids must consist of nine letters and digits.
    short: bool,
    known: Vec<Known>,
}

/// An earlier call.
struct Known {
    /// The client's id; can be empty.
    said: String,
    /// The id that the template gets.
    given: String,
    name: String,
    answered: bool,
}

impl Calls {
    fn complete(&mut self, mut message: Message) -> Message {
        let rest = &mut message.rest;
        if let Some(Value::Array(calls)) = rest.get_mut("tool_calls") {
            for call in calls {
                self.call(call);
            }
        }
        if message.role == "tool" {
            self.answer(rest);
        }
        let names = ["reasoning_content", "thinking", "reasoning"];
        if let Some(thought) =
            names.iter().find_map(|name| rest.get(*name)).filter(|thought| thought.is_string()).cloned()
        {
            for name in &names[..2] {
                rest.entry(*name).or_insert_with(|| thought.clone());
            }
        }
        message
    }

    fn call(&mut self, call: &mut Value) {
        let Some(call) = call.as_object_mut() else { return };
        call.entry("type").or_insert_with(|| "function".into());
        let said = call.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let given = if said.is_empty() || (self.short && !is_short(&said)) {
            format!("call{:05}", self.known.len() + 1)
        } else {
            said.clone()
        };
        call.insert("id".to_owned(), given.clone().into());
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { return };
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let written = function.entry("arguments").or_insert_with(|| Map::new().into());
        if let Some(Value::Object(parsed)) = written.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *written = parsed.into();
        } else if written.as_str().is_some_and(|text| text.trim().is_empty()) || written.is_null() {
            *written = Map::new().into();
        }
        self.known.push(Known { said, given, name, answered: false });
    }

    /// Adds the call's id and the tool's name to a tool's answer.
    fn answer(&mut self, rest: &mut Map<String, Value>) {
        let text = |rest: &Map<String, Value>, key: &str| rest.get(key).and_then(Value::as_str).map(str::to_owned);
        let said = text(rest, "tool_call_id").filter(|id| !id.is_empty());
        let name = text(rest, "name").or_else(|| text(rest, "tool_name"));
        let call = match said {
            Some(said) => self.known.iter_mut().rev().find(|call| call.said == said),
            // Answers without an id are in the order of their calls.
            None => {
                self.known.iter_mut().find(|call| !call.answered && name.as_ref().is_none_or(|name| *name == call.name))
            }
        };
        if let Some(call) = &call {
            rest.insert("tool_call_id".to_owned(), call.given.clone().into());
        }
        let name = name.or_else(|| call.as_ref().map(|call| call.name.clone()));
        if let Some(call) = call {
            call.answered = true;
        }
        if let Some(name) = name {
            for key in ["name", "tool_name"] {
                rest.entry(key).or_insert_with(|| name.clone().into());
            }
        }
    }
}

fn is_short(id: &str) -> bool {
    id.len() == MISTRAL_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(template: &str, messages: Value, expect: &Value) {
        let messages: Vec<Message> = serde_json::from_value(messages).expect("messages");
        let completed = serde_json::to_value(complete(&messages, template)).expect("JSON");
        assert_eq!(completed, *expect);
    }

    #[test]
    fn calls_and_answers_find_each_other() {
        // As Ollama's clients write it: no ids, the tool's name.
        let call = |id: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        let bare = json!({"function": {"name": "f", "arguments": {"a": 1}}});
        check(
            "",
            json!([{"role": "assistant", "tool_calls": [bare, bare]}, {"role": "tool", "tool_name": "f", "content": "1"},
                {"role": "tool", "content": "2"}]),
            &json!([
                {"role": "assistant", "content": "", "tool_calls": [call("call00001", json!({"a": 1})), call("call00002", json!({"a": 1}))]},
                {"role": "tool", "content": "1", "tool_name": "f", "tool_call_id": "call00001", "name": "f"},
                {"role": "tool", "content": "2", "tool_call_id": "call00002", "name": "f", "tool_name": "f"},
            ]),
        );
        // As OpenAI's clients write it: arguments as text, with ids.
        let given = call("call_abcdef", json!("{\"a\": 1}"));
        let answer = json!({"role": "tool", "tool_call_id": "call_abcdef", "content": "1"});
        for (template, id) in [("", "call_abcdef"), ("[TOOL_CALLS]", "call00001")] {
            check(
                template,
                json!([{"role": "assistant", "content": null, "tool_calls": [given]}, answer]),
                &json!([
                    {"role": "assistant", "content": "", "tool_calls": [call(id, json!({"a": 1}))]},
                    {"role": "tool", "content": "1", "tool_call_id": id, "name": "f", "tool_name": "f"},
                ]),
            );
        }
    }

    #[test]
    fn thinking_has_both_names() {
        check(
            "",
            json!([{"role": "assistant", "content": "a", "thinking": "t"}]),
            &json!([{"role": "assistant", "content": "a", "thinking": "t", "reasoning_content": "t"}]),
        );
        check("", json!([{"role": "user", "content": "a"}]), &json!([{"role": "user", "content": "a"}]));
    }
}
