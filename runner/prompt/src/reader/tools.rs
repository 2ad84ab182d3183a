//! The tools that a prompt offers: their names, and the types of their parameters.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::calls::literal;

/// Tools as in a request: `{"type": "function", "function": {"name": …, "parameters": SCHEMA}}`, or
/// the inner object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools(HashMap<String, Value>);

impl Tools {
    /// Reads the tools of a request; tools without a name are ignored.
    pub fn new(tools: Option<&Value>) -> Self {
        let list = tools.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            Some((name, schema.cloned().unwrap_or_default()))
        };
        Self(list.iter().filter_map(tool).collect())
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a tool of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names and parameter schemas, sorted by name.
    pub(crate) fn sorted(&self) -> Vec<(&str, &Value)> {
        let mut tools: Vec<_> = self.0.iter().map(|(name, schema)| (name.as_str(), schema)).collect();
        tools.sort_unstable_by_key(|(name, _)| *name);
        tools
    }

    /// Converts an unquoted argument to a type that the schema allows; otherwise it stays text.
    pub(super) fn argument(&self, tool: &str, name: &str, written: &str) -> Value {
        let schema = self.0.get(tool).and_then(|schema| schema.get("properties")?.get(name));
        let parsed = match written.trim() {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            // Templates print lists and objects in Python's syntax, too.
            text => match serde_json::from_str(text).ok().or_else(|| literal(text)) {
                Some(parsed) => parsed,
                None => return written.into(),
            },
        };
        let types = schema.map(types).unwrap_or_default();
        let fits = |wanted: &&str| match *wanted {
            "integer" => parsed.is_i64() || parsed.is_u64(),
            "number" => parsed.is_number(),
            "boolean" => parsed.is_boolean(),
            "array" => parsed.is_array(),
            "object" => parsed.is_object(),
            "null" => parsed.is_null(),
            _ => false,
        };
        // Without a type in the schema, only objects and lists are converted, because they cannot
        // be meant as text.
        let other = types.is_empty() && (parsed.is_object() || parsed.is_array());
        if other || types.iter().any(fits) { parsed } else { written.into() }
    }
}

/// Returns the types that a schema allows; empty if it specifies none.
fn types(schema: &Value) -> Vec<&str> {
    let alternatives = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
    let own: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    own.into_iter().chain(alternatives.flat_map(types)).collect()
}

/// Converts a call's arguments to an object: an object, or a text that contains one.
pub(super) fn object(arguments: Value) -> Option<Map<String, Value>> {
    match arguments {
        Value::Object(map) => Some(map),
        Value::Null => Some(Map::new()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => Some(map),
            _ => None,
        },
        _ => None,
    }
}
