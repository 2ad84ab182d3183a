//! Adapts a client's schema to the client's intent and to the library.
//!
//! In JSON Schema, an object can have any property in addition to the ones that its schema names.
//! Clients that request an object do not intend this, and a small model invents properties until
//! its context is full. Therefore, an object whose schema names properties and does not mention
//! others allows no others. `OpenAI` requires schemas to state this themselves; llama.cpp and
//! Ollama assume it too.
//!
//! Schemas that apply at the same time (`allOf`, and keys beside `$ref` and `anyOf`) are joined
//! first, if all of them describe objects. Otherwise each of them would refuse the properties that
//! the other names.

mod join;
mod unfold;

use serde_json::{Map, Value, json};

use crate::Error;
use join::{Root, joins, says_anything};

/// Maximum depth of nested schemas and of chained references.
const MAX_DEPTH: usize = 64;
/// Name of the definition of any value.
const ANY: &str = "x-any";
/// Bound of numbers whose schema has none. It is written without an exponent, and fits into 64 bits
/// with and without a fraction.
const MOST: i64 = 9_000_000_000_000_000_000;

/// Keys whose value maps names to schemas.
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keys whose value is a schema.
const SINGLE: [&str; 3] = ["items", "additionalProperties", "additionalItems"];
/// Keys whose value is a list of schemas.
const LISTS: [&str; 3] = ["prefixItems", "anyOf", "oneOf"];

/// String formats that are enforced; all others are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// A date in RFC 3339.
const DATE: &str = concat!(
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[048]|[2468][048]|[13579][26])00)-02-29"
);
/// A time in RFC 3339, up to nanoseconds.
const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

type Schema = Map<String, Value>;

/// Adapts a schema for the library.
///
/// # Errors
/// The value is not a schema, or schemas are nested too deeply.
pub(super) fn prepared(schema: &Value) -> Result<Schema, Error> {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) | Value::Null => Schema::new(),
        other => return Err(Error::Format(format!("a schema is an object, this is `{}`", short(other)))),
    };
    forget_annotations(&mut schema, 0);
    let root = Root::new(&schema);
    let mut closed = root.schema(&schema, 0)?;
    let definitions = closed.entry("$defs").or_insert_with(|| Schema::new().into());
    if let Some(definitions) = definitions.as_object_mut() {
        definitions.insert(ANY.to_owned(), any());
        definitions.extend(root.unfolding.made());
    }
    closed.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": true}),
    );
    Ok(closed)
}

/// Removes formats that are annotations: in JSON Schema, an unknown format does not constrain a
/// value.
fn forget_annotations(schema: &mut Schema, depth: usize) {
    // Deeper schemas are refused later.
    if depth > MAX_DEPTH {
        return;
    }
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| !FORMATS.contains(&format)) {
        schema.shift_remove("format");
    }
    let mut forget = |value: &mut Value| {
        if let Value::Object(inner) = value {
            forget_annotations(inner, depth + 1);
        }
    };
    for (key, value) in schema.iter_mut() {
        match (key.as_str(), value) {
            (key, Value::Object(named)) if BY_NAME.contains(&key) => named.values_mut().for_each(&mut forget),
            (key, Value::Array(list)) if LISTS.contains(&key) || key == "allOf" => {
                list.iter_mut().for_each(&mut forget);
            }
            (key, inner) if SINGLE.contains(&key) => forget(inner),
            _ => {}
        }
    }
}

/// Returns the beginning of a value, for error messages.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

impl Root {
    fn value(&self, value: &Value, depth: usize) -> Result<Value, Error> {
        match value {
            Value::Object(schema) => Ok(Value::Object(self.schema(schema, depth)?)),
            Value::Bool(true) => Ok(any_reference()),
            other => Ok(other.clone()),
        }
    }

    /// Joins the parts of a schema and closes its objects.
    fn schema(&self, schema: &Schema, depth: usize) -> Result<Schema, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::Format(format!("schemas can be nested at most {MAX_DEPTH} deep")));
        }
        if !joins(schema) {
            return self.closed(schema.clone(), depth);
        }
        let parts = Value::Object(schema.clone()).to_string();
        if let Some(again) = self.unfolding.again(&parts, |name| self.defines(name)) {
            return Ok(again);
        }
        self.unfolding.begin(parts);
        let closed = self.closed(self.joined(schema), depth)?;
        Ok(self.unfolding.end(closed))
    }

    /// Closes the objects of a schema whose parts are joined.
    fn closed(&self, schema: Schema, depth: usize) -> Result<Schema, Error> {
        let mut schema = self.distributed(schema);
        for key in SINGLE {
            if let Some(inner) = schema.get_mut(key) {
                *inner = self.value(inner, depth + 1)?;
            }
        }
        for key in BY_NAME {
            for inner in schema.get_mut(key).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
                *inner = self.value(inner, depth + 1)?;
            }
        }
        for key in LISTS {
            for inner in schema.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                *inner = self.value(inner, depth + 1)?;
            }
        }
        if is_open(&schema) {
            // Required properties are allowed, even if `properties` does not name them.
            let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                for name in required.iter().filter_map(Value::as_str) {
                    properties.entry(name).or_insert_with(any_reference);
                }
            }
            schema.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        name_type(&mut schema);
        bound_numbers(&mut schema);
        translate_patterns(&mut schema);
        complete_format(&mut schema);
        name_any(&mut schema);
        Ok(schema)
    }
}

/// Whether a schema names properties of an object, and neither allows others nor leaves them to
/// other schemas.
fn is_open(schema: &Schema) -> bool {
    let others =
        ["additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"];
    schema.get("properties").is_some_and(Value::is_object) && !others.iter().any(|key| schema.contains_key(*key))
}

/// Adds the type object or array to a schema that only describes the contents of one.
fn name_type(schema: &mut Schema) {
    let says = ["type", "const", "enum", "allOf", "anyOf", "oneOf", "$ref"];
    if says.iter().any(|key| schema.contains_key(*key)) {
        return;
    }
    let kinds =
        [("object", &["properties", "required", "patternProperties"][..]), ("array", &["items", "prefixItems"])];
    if let Some((kind, _)) = kinds.iter().find(|(_, keys)| keys.iter().any(|key| schema.contains_key(*key))) {
        schema.insert("type".to_owned(), (*kind).into());
    }
}

/// Returns a schema of any value. Unlike the library's own, it bounds numbers.
fn any() -> Value {
    let number = json!({"type": "number", "minimum": -MOST, "maximum": MOST});
    let inner = any_reference();
    json!({"anyOf": [
        {"type": ["string", "boolean", "null"]},
        number,
        {"type": "object", "additionalProperties": inner},
        {"type": "array", "items": inner},
    ]})
}

fn any_reference() -> Value {
    json!({"$ref": format!("#/$defs/{ANY}")})
}

/// Adds the schema of any value for the contents of objects and arrays whose schemas do not
/// restrict them, and in place of an empty schema.
fn name_any(schema: &mut Schema) {
    let is = |kind: &str| schema.get("type").is_some_and(|own| own == kind);
    let inner = match (is("object"), is("array")) {
        (true, _) if !is_open(schema) => "additionalProperties",
        (_, true) => "items",
        _ => {
            if !says_anything(schema) {
                schema.extend(any_reference().as_object().cloned().unwrap_or_default());
            }
            return;
        }
    };
    schema.entry(inner).or_insert_with(any_reference);
}

/// Bounds numbers without bounds: the library allows exponents of any size, which parsers reject.
fn bound_numbers(schema: &mut Schema) {
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    if !kinds.iter().any(|kind| matches!(*kind, "number" | "integer")) {
        return;
    }
    for (keys, bound) in [(["minimum", "exclusiveMinimum"], -MOST), (["maximum", "exclusiveMaximum"], MOST)] {
        if !keys.iter().any(|key| schema.contains_key(*key)) {
            schema.insert(keys[0].to_owned(), bound.into());
        }
    }
}

/// Translates patterns to Rust's syntax. An invalid pattern is left to the library, which reports
/// it.
fn translate_patterns(schema: &mut Schema) {
    let translated =
        |pattern: &str| jsonschema_regex::to_rust_regex(pattern).map_or_else(|()| pattern.to_owned(), Into::into);
    if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
        *pattern = translated(pattern);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("patternProperties") {
        *properties = std::mem::take(properties).into_iter().map(|(name, inner)| (translated(&name), inner)).collect();
    }
}

/// Adds rules about formats that the library lacks: the 29th of February exists in leap years only,
/// a minute has 60 seconds, and names have maximum lengths.
fn complete_format(schema: &mut Schema) {
    let at_most = |schema: &mut Schema, length: u64| {
        schema.entry("maxLength").or_insert(length.into());
    };
    let format = match schema.get("format").and_then(Value::as_str) {
        Some("date") => format!("^({DATE})$"),
        Some("time") => format!("^{TIME}$"),
        Some("date-time") => format!("^({DATE})[tT]{TIME}$"),
        // The part before the `@` may have at most 64 characters. It can be all of the address but
        // two characters, so the whole address gets this limit.
        Some("email") => return at_most(schema, 64),
        Some("hostname") => return at_most(schema, 253),
        _ => return,
    };
    if !schema.contains_key("pattern") {
        schema.shift_remove("format");
        schema.insert("pattern".to_owned(), format.into());
    }
}

#[cfg(test)]
mod tests;
