//! Python's values: the values in a template print like Python's lists, dictionaries and numbers.

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, Output, State};
use serde_json::{Map, Value as Json};

/// Methods of a dictionary, which are also attributes.
pub(super) const METHODS: [&str; 7] = ["items", "keys", "values", "get", "pop", "update", "copy"];

/// Converts a JSON value.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Array(items) => Value::from_object(List(items.iter().map(value).collect())),
        Json::Object(map) => dictionary(map),
        scalar => Value::from_serialize(scalar),
    }
}

/// Converts a JSON object to a dictionary.
pub(super) fn dictionary(map: &Map<String, Json>) -> Value {
    Value::from_object(Dictionary(map.iter().map(|(key, item)| (key.clone(), value(item))).collect()))
}

#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(self.0.iter()))
    }
}

/// A dictionary. It has few keys, so that a linear search is fast.
#[derive(Debug)]
struct Dictionary(Vec<(String, Value)>);

impl Dictionary {
    fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value)
    }
}

impl Object for Dictionary {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.find(key.as_str()?).cloned()
    }

    /// Returns an attribute: the value of a key, or else a method.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let method = || METHODS.contains(&key).then(|| Value::from_object(Method));
        self.find(key).cloned().or_else(method)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(key, _)| Value::from(key.as_str())).collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&dict(self.0.iter().map(|(key, value)| (Value::from(key.as_str()), value.clone()))))
    }
}

/// A method that is referenced but not called.
#[derive(Debug)]
struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<built-in method of dict object>")
    }
}

/// Prints a value as Python's `str` does.
pub(super) fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => Ok(out.write_str(&str(value))?),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// Converts a value to a string like Python's `str`.
pub(super) fn str(value: &Value) -> String {
    if value.kind() == ValueKind::String { value.to_string() } else { repr(value) }
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq | ValueKind::Iterable => match value.try_iter() {
            Ok(items) => list(items),
            Err(_) => value.to_string(),
        },
        ValueKind::Map => match value.try_iter() {
            Ok(keys) => {
                dict(keys.map(|key| (value.get_item(&key).unwrap_or_default(), key)).map(|(item, key)| (key, item)))
            }
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}

fn list<V: std::borrow::Borrow<Value>>(items: impl Iterator<Item = V>) -> String {
    format!("[{}]", items.map(|item| repr(item.borrow())).collect::<Vec<_>>().join(", "))
}

fn dict(items: impl Iterator<Item = (Value, Value)>) -> String {
    let items: Vec<String> = items.map(|(key, item)| format!("{}: {}", repr(&key), repr(&item))).collect();
    format!("{{{}}}", items.join(", "))
}

/// Formats a float with the shortest digits that identify it; with an exponent below 1e-4 and from
/// 1e16.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// Quotes a text: with single quotes, unless it contains single quotes and no double quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if c == quote || c == '\\' => write!(out, "\\{c}"),
            c if is_printable(c) => out.write_char(c),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push(quote);
    out
}

/// Whether Python prints a character unescaped: no control or format characters, no separators
/// other than the space, no private-use characters.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && (c == ' ' || !c.is_whitespace())
        && !matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0001}'..='\u{e007f}' | '\u{f0000}'..)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_print_as_in_python() {
        for (json, expect) in [
            (
                json!([1, 1.0, 1e16, 1e-5, 123_456.75, -0.0001, true, null]),
                "[1, 1.0, 1e+16, 1e-05, 123456.75, -0.0001, True, None]",
            ),
            (
                json!({"a": "it's", "b": "\"", "c": "'\"\n\u{7f}\u{200b}é\u{10ffff}"}),
                r#"{'a': "it's", 'b': '"', 'c': '\'"\n\x7f\u200bé\U0010ffff'}"#,
            ),
            (json!("it's"), "it's"),
            (json!(2.50), "2.5"),
        ] {
            assert_eq!(str(&value(&json)), expect);
            assert_eq!(value(&json).to_string(), if json.is_f64() { "2.5" } else { expect });
        }
    }
}
