//! Calls as JSON objects, and Mistral's names with JSON arguments.

use serde_json::{Deserializer, Map, Value};

use super::{Call, Tools, is_name};
use crate::reader::tools::object;

/// Marks of Mistral's models: begin of a further call, its id, and its arguments.
const CALLS: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// Parses consecutive calls; returns them and the remaining text.
pub(super) fn read(body: &str) -> Option<(Vec<Call>, &str)> {
    let mut calls = Vec::new();
    let mut rest = body;
    loop {
        let next = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        let next = next.strip_prefix(CALLS).unwrap_or(next).trim_start();
        if next.is_empty() {
            return Some((calls, next));
        }
        let Some((found, after)) = one(next) else {
            return (!calls.is_empty()).then_some((calls, rest));
        };
        calls.extend(found);
        rest = after;
    }
}

/// Parses calls without marks: every name must be that of a tool.
pub(super) fn unmarked<'b>(body: &'b str, tools: &Tools) -> Option<(Vec<Call>, &'b str)> {
    let (value, rest) = value(body.trim_start())?;
    let bare = |value: &Value| ["arguments", "parameters"].iter().any(|key| value.get(key).is_some());
    let function = |value: &Value| bare(value.get("function").filter(|inner| inner.is_object()).unwrap_or(value));
    let told = match &value {
        Value::Array(values) => values.iter().all(function),
        single => function(single),
    };
    let calls = calls(value)?;
    (told && calls.iter().all(|call| tools.has(&call.name))).then_some((calls, rest))
}

/// Parses calls of the form `{NAME: {…}}`, or an array of them.
pub(super) fn named(body: &str) -> Option<(Vec<Call>, &str)> {
    let (value, rest) = value(body.trim_start())?;
    let calls = match value {
        Value::Array(values) => values.into_iter().map(by_name).collect::<Option<Vec<_>>>()?,
        single => vec![by_name(single)?],
    };
    Some((calls, rest))
}

/// Converts an object whose only key is the name of a tool.
fn by_name(value: Value) -> Option<Call> {
    let Value::Object(map) = value else { return None };
    let mut entries = map.into_iter();
    let (Some((name, arguments)), None) = (entries.next(), entries.next()) else { return None };
    is_name(&name).then_some(())?;
    Some(Call { name, arguments: object(arguments)? })
}

/// Parses a value with one or several calls, or a name with arguments.
fn one(text: &str) -> Option<(Vec<Call>, &str)> {
    if text.starts_with(['{', '[']) {
        let (value, rest) = value(text)?;
        return Some((calls(value)?, rest));
    }
    let end = text.find(['{', '['])?;
    let (name, mut rest) = (text[..end].trim(), &text[end..]);
    if let Some(id) = rest.strip_prefix(ID) {
        rest = &id[id.find(['{', '['])?..];
    }
    let (arguments, rest) = value(rest.strip_prefix(ARGUMENTS).unwrap_or(rest).trim_start())?;
    is_name(name).then_some(())?;
    Some((vec![Call { name: name.to_owned(), arguments: object(arguments)? }], rest))
}

/// Returns the first JSON value of a text, and the remaining text.
fn value(text: &str) -> Option<(Value, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn calls(value: Value) -> Option<Vec<Call>> {
    match value {
        Value::Array(values) => values.into_iter().map(call).collect(),
        single => Some(vec![call(single)?]),
    }
}

/// Converts `{"name": …, "arguments": …}` in its variants, possibly inside `{"function": {…}}`.
fn call(value: Value) -> Option<Call> {
    let Value::Object(mut map) = value else { return None };
    if let Some(Value::Object(inner)) = map.get("function") {
        map = inner.clone();
    }
    let name = ["name", "function", "tool_name"].iter().find_map(|key| map.get(*key)?.as_str());
    let name = name.filter(|name| !name.is_empty())?.to_owned();
    let arguments = ["arguments", "parameters", "args", "input"].iter().find_map(|key| map.remove(*key));
    let arguments = arguments.map_or_else(|| Some(Map::new()), object)?;
    Some(Call { name, arguments })
}
