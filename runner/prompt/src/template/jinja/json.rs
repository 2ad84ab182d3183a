//! `tojson`: Python's `json.dumps`, without escapes for non-ASCII characters.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

use super::python::float;

/// Maximum indentation of `tojson`.
const MAX_INDENT: usize = 16;

/// Style of the output; see Python's `json.dumps`.
struct Style {
    /// Blanks per level if each item is on a separate line; `None` for a single line.
    indent: Option<usize>,
    /// Separators after an item, and after a key.
    separators: (String, String),
    ascii: bool,
    sort: bool,
}

/// Converts a value to JSON. Options: `indent`, `separators`, `ensure_ascii`, `sort_keys`.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn to_json(value: Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let invalid = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    if value.is_undefined() {
        return Err(invalid("a value that is not defined cannot be written as JSON".to_owned()));
    }
    let indent = match options.get::<Option<usize>>("indent")? {
        Some(indent) => Some(indent),
        None => indent,
    };
    if indent.is_some_and(|width| width > MAX_INDENT) {
        return Err(invalid(format!("tojson indents by {MAX_INDENT} at most")));
    }
    let style = Style {
        indent,
        separators: separators(&options, indent)?,
        ascii: flag(&options, "ensure_ascii")?,
        sort: flag(&options, "sort_keys")?,
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(&value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut text = String::new();
    style.write(&json, 0, &mut text);
    Ok(Value::from(text))
}

fn flag(options: &Kwargs, name: &str) -> Result<bool, Error> {
    Ok(options.get::<Option<Value>>(name)?.is_some_and(|value| value.is_true()))
}

/// Returns the separators of the call, else Python's defaults, which have no trailing blank in
/// indented output.
fn separators(options: &Kwargs, indent: Option<usize>) -> Result<(String, String), Error> {
    let Some(given) = options.get::<Option<Value>>("separators")?.filter(|given| !given.is_none()) else {
        return Ok((if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    };
    let both: Vec<Value> = given.try_iter()?.collect();
    match &both[..] {
        [item, key] if item.as_str().is_some() && key.as_str().is_some() => Ok((item.to_string(), key.to_string())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "`separators` of tojson are two texts")),
    }
}

impl Style {
    fn write(&self, value: &Json, depth: usize, out: &mut String) {
        let mut items: Vec<(Option<&String>, &Json)> = match value {
            Json::Array(items) => items.iter().map(|item| (None, item)).collect(),
            Json::Object(map) => map.iter().map(|(key, item)| (Some(key), item)).collect(),
            Json::String(text) => return self.string(text, out),
            Json::Number(number) => return out.push_str(&python_number(number)),
            scalar => return out.push_str(&scalar.to_string()),
        };
        if self.sort {
            items.sort_by_key(|(key, _)| *key);
        }
        let (open, close) = if value.is_array() { ('[', ']') } else { ('{', '}') };
        out.push(open);
        for (position, (key, item)) in items.iter().enumerate() {
            if position > 0 {
                out.push_str(&self.separators.0);
            }
            self.line(depth + 1, out);
            if let Some(key) = key {
                self.string(key, out);
                out.push_str(&self.separators.1);
            }
            self.write(item, depth + 1, out);
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        let quoted = Json::from(text).to_string();
        if !self.ascii {
            return out.push_str(&quoted);
        }
        for c in quoted.chars() {
            if matches!(c, ' '..='~') {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// Formats a number as Python does.
fn python_number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() => float(value),
        _ => number.to_string(),
    }
}
