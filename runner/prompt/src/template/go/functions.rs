//! The functions of Go's templates, and the functions that Ollama adds.

use std::cmp::Ordering;
use std::rc::Rc;

use super::print::{sprint, sprintf, sprintln};
use super::value::{List, Map, Value};
use crate::template::clock::Clock;

const KNOWN: [&str; 22] = [
    "and",
    "or",
    "not",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "len",
    "index",
    "slice",
    "print",
    "printf",
    "println",
    "html",
    "js",
    "urlquery",
    "json",
    "currentDate",
    "yesterdayDate",
    "toTypeScriptType",
];

/// Whether a function of this name exists. `call` is excluded, because no value is a function.
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// Calls a function. `and` and `or` are handled elsewhere, because they do not evaluate all
/// arguments.
pub(super) fn call(name: &str, args: &[Value], clock: &Clock) -> Result<Value, String> {
    let text = |text: String| Ok(Value::text(&text));
    match (name, args) {
        ("not", [value]) => Ok(Value::Bool(!value.is_true())),
        ("eq", [first, others @ ..]) if !others.is_empty() => any_equal(first, others),
        ("ne", [a, b]) => Ok(Value::Bool(!equal(a, b)?)),
        ("lt", [a, b]) => Ok(Value::Bool(order(a, b)?.is_lt())),
        ("le", [a, b]) => Ok(Value::Bool(order(a, b)?.is_le())),
        ("gt", [a, b]) => Ok(Value::Bool(order(a, b)?.is_gt())),
        ("ge", [a, b]) => Ok(Value::Bool(order(a, b)?.is_ge())),
        ("len", [value]) => length(value),
        ("index", [value, keys @ ..]) => keys.iter().try_fold(value.clone(), |value, key| index(&value, key)),
        ("slice", [value, bounds @ ..]) if bounds.len() <= 3 => slice(value, bounds),
        ("print", values) => text(sprint(values)),
        ("println", values) => text(sprintln(values)),
        ("printf", [Value::Text(format), values @ ..]) => text(sprintf(format, values)),
        ("printf", [format, ..]) => Err(format!("the format of printf is a text, not {}", format.kind())),
        ("html", values) => text(html(&sprint(values))),
        ("js", values) => text(js(&sprint(values))),
        ("urlquery", values) => text(urlquery(&sprint(values))),
        ("json", [value]) => text(value.json()),
        ("currentDate", _) => text(clock.day(0)),
        ("yesterdayDate", _) => text(clock.day(-1)),
        ("toTypeScriptType", [value]) => text(typescript(value)),
        _ => Err(format!("wrong number of arguments for {name}: {}", args.len())),
    }
}

fn any_equal(first: &Value, others: &[Value]) -> Result<Value, String> {
    for other in others {
        if equal(first, other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn equal(a: &Value, b: &Value) -> Result<bool, String> {
    Ok(match (a, b) {
        (Value::Nil, Value::Nil) => true,
        (Value::Nil, _) | (_, Value::Nil) => false,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).is_some_and(Ordering::is_eq),
        (Value::Text(a), Value::Text(b)) => a == b,
        _ => return Err(format!("incompatible types for comparison: {} and {}", a.kind(), b.kind())),
    })
}

fn order(a: &Value, b: &Value) -> Result<Ordering, String> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Ok(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => Ok(a.partial_cmp(b).unwrap_or(Ordering::Greater)),
        (Value::Text(a), Value::Text(b)) => Ok(a.cmp(b)),
        _ => Err(format!("incompatible types for comparison: {} and {}", a.kind(), b.kind())),
    }
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn length(value: &Value) -> Result<Value, String> {
    match value {
        Value::Text(text) => Ok(count(text.len())),
        Value::List(list) => Ok(count(list.items.len())),
        Value::Map(map) => Ok(count(map.items.len())),
        other => Err(format!("len of type {}", other.kind())),
    }
}

fn place(key: &Value, most: usize) -> Result<usize, String> {
    let Value::Int(number) = key else { return Err(format!("cannot index with type {}", key.kind())) };
    let at = usize::try_from(*number).ok().filter(|at| *at <= most);
    at.ok_or_else(|| format!("index out of range: {number}"))
}

fn index(value: &Value, key: &Value) -> Result<Value, String> {
    match (value, key) {
        (Value::List(list), key) => {
            let at = place(key, list.items.len())?;
            list.items.get(at).cloned().ok_or_else(|| format!("index out of range: {at}"))
        }
        (Value::Text(text), key) => {
            let at = place(key, text.len())?;
            text.as_bytes()
                .get(at)
                .map(|byte| Value::Int((*byte).into()))
                .ok_or_else(|| format!("index out of range: {at}"))
        }
        (Value::Map(map), Value::Text(key)) => Ok(entry(map, key)),
        (Value::Nil, _) => Err("index of untyped nil".to_owned()),
        (other, _) => Err(format!("can't index item of type {}", other.kind())),
    }
}

/// Returns the value of a key in a map, or the map's default.
pub(super) fn entry(map: &Map, key: &str) -> Value {
    let known = map.items.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    known.or(map.absent.as_ref()).cloned().unwrap_or(Value::Nil)
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value, String> {
    let length = match value {
        Value::List(list) => list.items.len(),
        Value::Text(_) if bounds.len() == 3 => return Err("cannot 3-index slice a string".to_owned()),
        Value::Text(text) => text.len(),
        Value::Nil => return Err("slice of untyped nil".to_owned()),
        other => return Err(format!("can't slice item of type {}", other.kind())),
    };
    let bound =
        |position: usize, otherwise: usize| bounds.get(position).map_or(Ok(otherwise), |key| place(key, length));
    let (begin, end) = (bound(0, 0)?, bound(1, length)?);
    if begin > end {
        return Err(format!("invalid slice index: {begin} > {end}"));
    }
    Ok(match value {
        Value::List(list) => {
            Value::List(Rc::new(List { items: list.items[begin..end].to_vec(), shown: list.shown, absent: false }))
        }
        Value::Text(text) => Value::text(&String::from_utf8_lossy(&text.as_bytes()[begin..end])),
        _ => Value::Nil,
    })
}

fn html(text: &str) -> String {
    let escape = |c: char| match c {
        '\0' => "\u{fffd}".to_owned(),
        '"' => "&#34;".to_owned(),
        '\'' => "&#39;".to_owned(),
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

fn js(text: &str) -> String {
    let escape = |c: char| match c {
        '\\' => "\\\\".to_owned(),
        '\'' => "\\'".to_owned(),
        '"' => "\\\"".to_owned(),
        '<' => "\\u003C".to_owned(),
        '>' => "\\u003E".to_owned(),
        '&' => "\\u0026".to_owned(),
        '=' => "\\u003D".to_owned(),
        c if u32::from(c) < 0x20 => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

fn urlquery(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b' ' => "+".to_owned(),
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// Returns the type of a tool's property in TypeScript's syntax.
fn typescript(property: &Value) -> String {
    let Value::Struct(property) = property else { return "any".to_owned() };
    let of = |name: &str| property.fields.iter().find(|field| field.name == name).map(|field| &field.value);
    let items = |value: Option<&Value>| match value {
        Some(Value::List(list)) => list.items.clone(),
        _ => Vec::new(),
    };
    let alternatives: Vec<String> = items(of("AnyOf")).iter().map(typescript).collect();
    if !alternatives.is_empty() {
        return alternatives.join(" | ");
    }
    let name = |kind: &Value| match kind.shown().as_str() {
        "string" => "string",
        "number" | "integer" => "number",
        "boolean" => "boolean",
        "array" => "any[]",
        "object" => "Record<string, any>",
        "null" => "null",
        _ => "any",
    };
    let kinds: Vec<&str> = items(of("Type")).iter().map(name).collect();
    if kinds.is_empty() { "any".to_owned() } else { kinds.join(" | ") }
}
