//! Tools and the choice among them.
//!
//! The chat API nests a function (`{"type": "function", "function": {"name": …}}`), the responses
//! API does not. Templates expect the nested form.

use protocol::ToolChoice;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Refusal;

/// `reasoning` of a request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reasoning {
    pub effort: Option<String>,
}

/// Converts a reasoning effort to Ollama's thinking levels.
pub(super) fn think(effort: Option<&str>, param: &str) -> Result<Option<crate::ollama::Think>, Refusal> {
    use crate::ollama::Think;
    let level = match effort {
        None => return Ok(None),
        Some("none") => return Ok(Some(Think::Flag(false))),
        Some("minimal" | "low") => "low",
        Some("medium") => "medium",
        Some("high") => "high",
        Some("xhigh" | "max") => "max",
        Some(other) => {
            return Err(Refusal::new(
                param,
                format!("`{other}` is no effort; expected none, minimal, low, medium, high, xhigh or max"),
            ));
        }
    };
    Ok(Some(Think::Level(level.to_owned())))
}

/// Parses the arguments of a call that a client sends back: serialized JSON. An empty text means no
/// arguments.
pub(super) fn arguments(text: &str, param: &str) -> Result<Map<String, Value>, Refusal> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|e| Refusal::new(param, format!("the arguments are not a JSON object: {e}")))
}

/// Creates a tool call in the form that templates expect.
pub(super) fn call(id: &str, name: &str, arguments: Map<String, Value>) -> Value {
    let arguments = Value::Object(arguments);
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Converts tools of either form to the nested form.
pub(super) fn tools(given: &[Value]) -> Result<Vec<Value>, Refusal> {
    given.iter().enumerate().map(|(at, tool)| nested(at, tool)).collect()
}

fn nested(at: usize, tool: &Value) -> Result<Value, Refusal> {
    let refuse = |field: &str, message: String| Err(Refusal::new(format!("tools[{at}].{field}"), message));
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some(other) => {
            return refuse("type", format!("tools of type `{other}` are not supported; only functions are"));
        }
        None => return refuse("type", "a tool needs a type; expected \"function\"".to_owned()),
    }
    let function = match tool.get("function") {
        Some(Value::Object(function)) => function.clone(),
        Some(_) => return refuse("function", "a function is an object".to_owned()),
        None => {
            let known = |field: &&str| tool.get(*field).is_some_and(|value| !value.is_null());
            let fields = ["name", "description", "parameters", "strict"].into_iter().filter(known);
            fields.map(|field| (field.to_owned(), tool[field].clone())).collect()
        }
    };
    match function.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => {}
        _ => return refuse("function.name", "a function needs a name".to_owned()),
    }
    if function.get("parameters").is_some_and(|schema| !schema.is_object() && !schema.is_null()) {
        return refuse("function.parameters", "parameters are a JSON schema, which is an object".to_owned());
    }
    Ok(json!({"type": "function", "function": function}))
}

/// Returns the name of a nested tool.
fn name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Returns the tools that the model may see and whether it may call them. If calls are not allowed,
/// the model sees no tools.
pub(super) fn choose(tools: Vec<Value>, choice: Option<&Value>) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    let refuse = |message: String| Err(Refusal::new("tool_choice", message));
    match choice {
        None | Some(Value::Null) => Ok((tools, ToolChoice::Auto)),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok((tools, ToolChoice::Auto)),
            "none" => Ok((Vec::new(), ToolChoice::None)),
            "required" if tools.is_empty() => refuse("a call is required, but there are no tools".to_owned()),
            "required" => Ok((tools, ToolChoice::Required)),
            other => refuse(format!("`{other}` is no choice; expected none, auto, required or an object")),
        },
        Some(Value::Object(choice)) => match choice.get("type").and_then(Value::as_str) {
            Some("function") => named(tools, choice),
            Some("allowed_tools") => allowed(tools, choice),
            Some(other) => refuse(format!("`{other}` is no choice; expected function or allowed_tools")),
            None => refuse("the choice needs a type; expected function or allowed_tools".to_owned()),
        },
        Some(other) => refuse(format!("the choice is {other}, expected a string or an object")),
    }
}

fn named(tools: Vec<Value>, choice: &Map<String, Value>) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    let function = choice.get("function").and_then(|function| function.get("name")).or_else(|| choice.get("name"));
    let Some(wanted) = function.and_then(Value::as_str) else {
        return Err(Refusal::new("tool_choice", "the choice of a function needs its name"));
    };
    if !tools.iter().any(|tool| name(tool) == wanted) {
        return Err(Refusal::new("tool_choice", format!("the function `{wanted}` is not among the tools")));
    }
    let wanted = ToolChoice::Named { name: wanted.to_owned() };
    Ok((tools, wanted))
}

fn allowed(mut tools: Vec<Value>, choice: &Map<String, Value>) -> Result<(Vec<Value>, ToolChoice), Refusal> {
    // The chat API nests this object, too.
    let choice = choice.get("allowed_tools").and_then(Value::as_object).unwrap_or(choice);
    let Some(list) = choice.get("tools").and_then(Value::as_array) else {
        return Err(Refusal::new("tool_choice", "allowed_tools needs the list of tools"));
    };
    let listed = |tool: &Value| {
        let names = list.iter().filter_map(|entry| entry["function"]["name"].as_str().or(entry["name"].as_str()));
        names.into_iter().any(|wanted| wanted == name(tool))
    };
    tools.retain(listed);
    choose(tools, choice.get("mode"))
}

#[cfg(test)]
mod tests;
