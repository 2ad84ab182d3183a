//! The tools that a prompt offers: their names, and the types of their parameters.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::calls::literal;

/// Tools as a request has them: `{"type": "function", "function": {"name": …, "parameters": SCHEMA}}`, or the inner object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools(HashMap<String, Value>);

impl Tools {
    /// Reads the tools of a request; what has no name is no tool.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Names and the schemas of their arguments, by name.
    pub(crate) fn sorted(&self) -> Vec<(&str, &Value)> {
        let mut tools: Vec<_> = self.0.iter().map(|(name, schema)| (name.as_str(), schema)).collect();
        tools.sort_unstable_by_key(|(name, _)| *name);
        tools
    }

    /// An argument that was written without quotes, by the type that the schema gives it. What does not fit is text.
    pub(super) fn argument(&self, tool: &str, name: &str, written: &str) -> Value {
        let schema = self.0.get(tool).and_then(|schema| schema.get("properties")?.get(name));
        let parsed = match written.trim() {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            // Templates print lists and objects as Python does, too.
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
        // Without a type only what cannot be meant as text is something else.
        let other = types.is_empty() && (parsed.is_object() || parsed.is_array());
        if other || types.iter().any(fits) { parsed } else { written.into() }
    }
}

/// The types that a schema allows; none where it does not say.
fn types(schema: &Value) -> Vec<&str> {
    let alternatives = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
    let own: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    own.into_iter().chain(alternatives.flat_map(types)).collect()
}

/// The object of a call's arguments, where they are one: as it is, or as text that holds one.
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
