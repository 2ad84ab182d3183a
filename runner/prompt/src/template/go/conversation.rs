//! The data of Ollama's templates: the conversation under the names that they use.
//!
//! Source: Ollama's `template/template.go`, `Execute`, `collate` and the types around them.

use std::rc::Rc;

use protocol::{Message, RenderRequest};
use serde_json::Value as Json;

use super::value::{Field, List, Map, Shown, Struct, Value, sorted};

/// Returns the data of a template that uses messages.
pub(super) fn whole(request: &RenderRequest) -> Value {
    let (system, messages) = collated(&request.messages);
    data(
        request,
        [
            ("System", Value::text(&system)),
            ("Messages", Value::list(messages.iter().map(message).collect())),
            ("Tools", tools(request.tools.as_ref())),
            ("Response", Value::text("")),
        ],
    )
}

/// Returns the data of a template that uses a single prompt and its answer.
pub(super) fn turn(request: &RenderRequest, turn: &Turn) -> Value {
    data(
        request,
        [
            ("System", Value::text(&turn.system)),
            ("Prompt", Value::text(&turn.prompt)),
            ("Response", Value::text(&turn.response)),
        ],
    )
}

/// Returns the data of a template for fill-in-the-middle.
pub(super) fn insert(request: &RenderRequest, prefix: &str, suffix: &str) -> Value {
    data(request, [("Prompt", Value::text(prefix)), ("Suffix", Value::text(suffix)), ("Response", Value::text(""))])
}

/// A prompt and its answer, with the system prompt before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) system: String,
    pub(super) prompt: String,
    pub(super) response: String,
}

/// Splits a conversation into such turns. The last one can lack an answer, or be empty.
pub(super) fn turns(messages: &[Message]) -> Vec<Turn> {
    let (_, messages) = collated(messages);
    let mut turns = Vec::new();
    let mut turn = Turn::default();
    for message in &messages {
        let ends = match message.role.as_str() {
            "system" => !turn.prompt.is_empty() || !turn.response.is_empty(),
            "user" => !turn.response.is_empty(),
            _ => false,
        };
        if ends {
            turns.push(std::mem::take(&mut turn));
        }
        match message.role.as_str() {
            "system" => turn.system.clone_from(&message.content),
            "user" => turn.prompt.clone_from(&message.content),
            "assistant" => turn.response.clone_from(&message.content),
            _ => {}
        }
    }
    turns.push(turn);
    turns
}

/// Returns the data with the variables that all templates have.
fn data<const N: usize>(request: &RenderRequest, items: [(&str, Value); N]) -> Value {
    let variable = |name: &str| request.variables.get(name);
    let thinks = variable("thinking").and_then(Json::as_bool);
    let level = variable("reasoning_effort").and_then(Json::as_str).unwrap_or_default();
    // If thinking is requested without a level, the medium level is used.
    let level = if level.is_empty() && thinks == Some(true) { "medium" } else { level };
    let thinking = [
        ("Think", Value::Bool(thinks.unwrap_or_default())),
        ("ThinkLevel", Value::text(level)),
        ("IsThinkSet", Value::Bool(thinks.is_some())),
    ];
    let items = items.into_iter().chain(thinking).map(|(name, value)| (name.to_owned(), value)).collect();
    Value::Map(Rc::new(Map { items, ..Map::default() }))
}

/// Returns the joined system prompts, and the messages. Adjacent messages with the same role are
/// joined, except for tools' answers.
fn collated(messages: &[Message]) -> (String, Vec<Message>) {
    let mut system = Vec::new();
    let mut collated: Vec<Message> = Vec::new();
    for message in messages {
        let message = Message { role: message.role.to_lowercase(), ..message.clone() };
        if message.role == "system" {
            system.push(message.content.clone());
        }
        match collated.last_mut() {
            Some(last) if last.role == message.role && message.role != "tool" => {
                last.content.push_str("\n\n");
                last.content.push_str(&message.content);
            }
            _ => collated.push(message),
        }
    }
    (system.join("\n\n"), collated)
}

fn record(kind: &'static str, shown: Shown, fields: Vec<Field>) -> Value {
    Value::Struct(Rc::new(Struct { kind, fields, shown }))
}

/// Creates a field whose JSON name is Go's name.
fn plain(name: &'static str, value: Value) -> Field {
    Field { name, key: name, optional: false, value }
}

fn always(name: &'static str, key: &'static str, value: Value) -> Field {
    Field { name, key, optional: false, value }
}

fn optional(name: &'static str, key: &'static str, value: Value) -> Field {
    Field { name, key, optional: true, value }
}

fn list(items: Option<Vec<Value>>, shown: Shown) -> Value {
    Value::List(Rc::new(List { absent: items.is_none(), items: items.unwrap_or_default(), shown }))
}

fn text_of(value: Option<&Json>) -> Value {
    Value::text(value.and_then(Json::as_str).unwrap_or_default())
}

fn message(message: &Message) -> Value {
    let rest = |name: &str| message.rest.get(name);
    let calls = rest("tool_calls").and_then(Json::as_array).filter(|calls| !calls.is_empty());
    let calls = calls.map(|calls| calls.iter().enumerate().map(|(position, one)| call(one, position)).collect());
    let images = rest("images").and_then(Json::as_array);
    record(
        "*template.templateMessage",
        Shown::Plain,
        vec![
            plain("Role", Value::text(&message.role)),
            plain("Content", Value::text(&message.content)),
            plain("Thinking", text_of(rest("thinking"))),
            plain("Images", list(images.map(|images| images.iter().map(Value::of_json).collect()), Shown::Plain)),
            plain("ToolCalls", list(calls, Shown::Plain)),
            plain("ToolName", text_of(rest("tool_name"))),
            plain("ToolCallID", text_of(rest("tool_call_id"))),
        ],
    )
}

fn call(call: &Json, position: usize) -> Value {
    let function = &call["function"];
    let index = function["index"].as_i64().unwrap_or(i64::try_from(position).unwrap_or_default());
    let arguments = match Value::of_json(&function["arguments"]) {
        Value::Map(map) => Map { items: map.items.clone(), shown: Shown::Json, absent: None },
        _ => Map { shown: Shown::Json, ..Map::default() },
    };
    let function = record(
        "template.templateToolCallFunction",
        Shown::Plain,
        vec![
            plain("Index", Value::Int(index)),
            plain("Name", text_of(function.get("name"))),
            plain("Arguments", Value::Map(Rc::new(arguments))),
        ],
    );
    record(
        "template.templateToolCall",
        Shown::Plain,
        vec![plain("ID", text_of(call.get("id"))), plain("Function", function)],
    )
}

fn tools(tools: Option<&Json>) -> Value {
    let tools = tools.and_then(Json::as_array).map(|tools| tools.iter().map(tool).collect());
    list(tools, Shown::Json)
}

/// Converts a tool. Its function and its parameters print as JSON, which templates expect; since
/// version 0.14, Ollama prints them as Go prints a struct.
fn tool(tool: &Json) -> Value {
    let function = tool.get("function").unwrap_or(tool);
    let parameters = &function["parameters"];
    let properties = parameters.get("properties").and_then(Json::as_object);
    let items = properties.map(|map| sorted(map, property)).unwrap_or_default();
    let properties = Map { items, shown: Shown::Json, absent: Some(property(&Json::Null)) };
    let required = parameters.get("required").and_then(Json::as_array);
    let parameters = record(
        "template.templateToolFunctionParameters",
        Shown::Json,
        vec![
            always("Type", "type", text_of(parameters.get("type"))),
            optional("Defs", "$defs", Value::of_json(&parameters["$defs"])),
            optional("Items", "items", Value::of_json(&parameters["items"])),
            optional("Required", "required", texts(required)),
            always("Properties", "properties", Value::Map(Rc::new(properties))),
        ],
    );
    let function = record(
        "template.templateToolFunction",
        Shown::Json,
        vec![
            always("Name", "name", text_of(function.get("name"))),
            always("Description", "description", text_of(function.get("description"))),
            always("Parameters", "parameters", parameters),
        ],
    );
    let kind = tool.get("type").and_then(Json::as_str).unwrap_or("function");
    record(
        "template.templateTool",
        Shown::Json,
        vec![
            always("Type", "type", Value::text(kind)),
            optional("Items", "items", Value::of_json(&tool["items"])),
            always("Function", "function", function),
        ],
    )
}

fn texts(items: Option<&Vec<Json>>) -> Value {
    list(items.map(|items| items.iter().map(|item| text_of(Some(item))).collect()), Shown::Plain)
}

/// Converts a property of a tool's parameters. Its own properties keep the order of the request.
fn property(schema: &Json) -> Value {
    let kinds = match &schema["type"] {
        Json::String(kind) => vec![Value::text(kind)],
        Json::Array(kinds) => kinds.iter().map(|kind| text_of(Some(kind))).collect(),
        _ => Vec::new(),
    };
    let many = |name: &str, of: fn(&Json) -> Value| {
        list(schema.get(name).and_then(Json::as_array).map(|items| items.iter().map(of).collect()), Shown::Plain)
    };
    let inner = schema.get("properties").and_then(Json::as_object);
    let inner = inner.map_or(Value::Nil, |map| {
        let items = map.iter().map(|(name, schema)| (name.clone(), property(schema))).collect();
        Value::Map(Rc::new(Map { items, shown: Shown::Json, absent: None }))
    });
    record(
        "api.ToolProperty",
        Shown::Plain,
        vec![
            optional("AnyOf", "anyOf", many("anyOf", property)),
            optional("Type", "type", list(Some(kinds), Shown::OneOrList)),
            optional("Items", "items", Value::of_json(&schema["items"])),
            optional("Description", "description", text_of(schema.get("description"))),
            optional("Enum", "enum", many("enum", Value::of_json)),
            optional("Properties", "properties", inner),
            optional("Required", "required", texts(schema.get("required").and_then(Json::as_array))),
        ],
    )
}
