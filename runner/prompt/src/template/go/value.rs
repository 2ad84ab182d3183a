//! The values of Go templates, and their printed forms in Go.
//!
//! Sources: the packages `text/template`, `fmt` and `encoding/json` of Go.

use std::fmt::Write;
use std::rc::Rc;

/// A value of a template.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// No value: `nil`, or a missing key in a map of any values.
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    Struct(Rc<Struct>),
}

/// A list of values.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) shown: Shown,
    /// Whether the list was not given; it is `null` in JSON.
    pub(super) absent: bool,
}

/// Values by name, sorted by name; the properties of a property keep their original order.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) items: Vec<(String, Value)>,
    pub(super) shown: Shown,
    /// Value of missing keys.
    pub(super) absent: Option<Value>,
}

/// A value with fields, which can have other names in JSON.
#[derive(Debug)]
pub(super) struct Struct {
    /// Go's name of the type, for error messages.
    pub(super) kind: &'static str,
    pub(super) fields: Vec<Field>,
    pub(super) shown: Shown,
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// Name in JSON.
    pub(super) key: &'static str,
    /// Whether the field is omitted from JSON if it is empty.
    pub(super) optional: bool,
    pub(super) value: Value,
}

/// How a value is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shown {
    /// As Go prints values by default.
    #[default]
    Plain,
    /// As JSON.
    Json,
    /// A single item as itself, several as a list; for the types of a property.
    OneOrList,
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(items: Vec<Value>) -> Self {
        Self::List(Rc::new(List { items, ..List::default() }))
    }

    /// Converts a JSON value: all numbers become floats, and maps are sorted by key.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(flag) => Self::Bool(*flag),
            serde_json::Value::Number(number) => Self::Float(number.as_f64().unwrap_or_default()),
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(items) => Self::list(items.iter().map(Self::of_json).collect()),
            serde_json::Value::Object(map) => {
                Self::Map(Rc::new(Map { items: sorted(map, Self::of_json), ..Map::default() }))
            }
        }
    }

    /// Whether the value counts as true in a condition: non-empty values, and any struct.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(flag) => *flag,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.items.is_empty(),
            Self::Struct(_) => true,
        }
    }

    /// Returns Go's name of the type, for error messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
            Self::Struct(value) => value.kind,
        }
    }

    /// Returns the output of an action.
    pub(super) fn printed(&self) -> String {
        match self {
            Self::Nil => "<no value>".to_owned(),
            other => other.shown(),
        }
    }

    /// Formats the value as `%v` in `fmt` does.
    pub(super) fn shown(&self) -> String {
        let joined = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(" ");
        match self {
            Self::Nil => "<nil>".to_owned(),
            Self::Bool(flag) => flag.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) => general(*number),
            Self::Text(text) => text.to_string(),
            Self::List(list) => match (list.shown, &list.items[..]) {
                (Shown::Json, _) => self.json(),
                (Shown::OneOrList, []) => String::new(),
                (Shown::OneOrList, [one]) => one.shown(),
                _ => format!("[{}]", joined(&mut list.items.iter().map(Self::shown))),
            },
            Self::Map(map) if map.shown == Shown::Json => self.json(),
            Self::Map(map) => {
                let items = &mut map.items.iter().map(|(key, value)| format!("{key}:{}", value.shown()));
                format!("map[{}]", joined(items))
            }
            Self::Struct(value) if value.shown == Shown::Json => self.json(),
            Self::Struct(value) => format!("{{{}}}", joined(&mut value.fields.iter().map(|field| field.value.shown()))),
        }
    }

    /// Formats the value as Go's `encoding/json` does.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }

    fn write_json(&self, out: &mut String) {
        match self {
            Self::Nil => out.push_str("null"),
            Self::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Self::Int(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Float(number) => out.push_str(&json_number(*number)),
            Self::Text(text) => quote(text, out),
            Self::List(list) if list.absent => out.push_str("null"),
            Self::List(list) => {
                if let (Shown::OneOrList, [one]) = (list.shown, &list.items[..]) {
                    return one.write_json(out);
                }
                out.push('[');
                for (position, item) in list.items.iter().enumerate() {
                    out.push_str(if position > 0 { "," } else { "" });
                    item.write_json(out);
                }
                out.push(']');
            }
            Self::Map(map) => write_object(map.items.iter().map(|(key, value)| (key.as_str(), value)), out),
            Self::Struct(value) => {
                let told = value.fields.iter().filter(|field| !field.optional || field.value.is_told());
                write_object(told.map(|field| (field.key, &field.value)), out);
            }
        }
    }

    /// Whether an optional field is included in JSON.
    fn is_told(&self) -> bool {
        match self {
            Self::Struct(_) | Self::Map(_) => true,
            other => other.is_true(),
        }
    }
}

/// Returns the items of a map, sorted by name.
pub(super) fn sorted(
    map: &serde_json::Map<String, serde_json::Value>,
    of: fn(&serde_json::Value) -> Value,
) -> Vec<(String, Value)> {
    let mut items: Vec<(String, Value)> = map.iter().map(|(key, value)| (key.clone(), of(value))).collect();
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    items
}

fn write_object<'v>(items: impl Iterator<Item = (&'v str, &'v Value)>, out: &mut String) {
    out.push('{');
    for (position, (key, value)) in items.enumerate() {
        out.push_str(if position > 0 { "," } else { "" });
        quote(key, out);
        out.push(':');
        value.write_json(out);
    }
    out.push('}');
}

/// Quotes a text for JSON; HTML's special characters are escaped too.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Formats a number for JSON: without exponent between 1e-6 and 1e21.
fn json_number(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = exponential(number);
        // A small negative exponent has one digit only.
        return match text.rsplit_once("e-0") {
            Some((digits, exponent)) => format!("{digits}e-{exponent}"),
            None => text,
        };
    }
    format!("{number}")
}

/// Formats a number with the shortest digits and an exponent of at least two digits.
fn exponential(number: f64) -> String {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
    format!("{digits}e{sign}{size:0>2}")
}

/// Formats a number as `%g` with the shortest digits: with an exponent if the number's exponent is
/// below −4 or at least 6.
pub(super) fn general(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        }
        .to_owned();
    }
    let scientific = exponential(number);
    let exponent = scientific.split_once('e').and_then(|(_, size)| size.parse::<i32>().ok()).unwrap_or_default();
    if number != 0.0 && !(-4..6).contains(&exponent) { scientific } else { number.to_string() }
}
