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
mod tests {
    use super::*;

    /// Adapts a schema and removes the additions that every schema gets; the definition of any
    /// value becomes `true` again.
    fn found(schema: &Value) -> Value {
        let mut found = prepared(schema).expect("a schema");
        found.shift_remove("x-guidance");
        let definitions = found.get_mut("$defs").and_then(Value::as_object_mut).expect("definitions");
        definitions.shift_remove(ANY).expect("any value");
        if definitions.is_empty() {
            found.shift_remove("$defs");
        }
        let text = Value::Object(found).to_string().replace(&any_reference().to_string(), "true");
        serde_json::from_str(&text).expect("JSON")
    }

    fn check(schema: &Value, expect: &Value) {
        assert_eq!(found(schema), *expect, "{schema}");
    }

    #[test]
    fn unknown_formats_are_annotations() {
        for format in ["path", "password", "uri-reference", "binary", "int32"] {
            check(&json!({"type": "string", "format": format}), &json!({"type": "string"}));
            // In every position of a schema, and before parts are joined.
            let inner = json!({"type": "string", "format": format});
            for schema in [
                json!({"anyOf": [inner, {"type": "null"}]}),
                json!({"type": "array", "items": inner}),
                json!({"allOf": [inner, {"maxLength": 5}]}),
                json!({"$defs": {"p": inner}, "$ref": "#/$defs/p"}),
                json!({"type": "object", "properties": {"format": inner}, "additionalProperties": false}),
            ] {
                assert!(!found(&schema).to_string().contains(format), "{schema}");
            }
        }
        assert!(found(&json!({"type": "string", "format": "uuid"})).to_string().contains("uuid"));
    }

    #[test]
    fn objects_that_name_properties_are_closed() {
        let closed = json!({"type": "object", "properties": {"a": true}, "additionalProperties": false});
        check(&json!({"type": "object", "properties": {"a": {}}}), &closed);
        check(
            &json!({"properties": {"a": true}}),
            &json!({"properties": {"a": true}, "additionalProperties": false, "type": "object"}),
        );
        for open in [
            json!({"type": "object", "additionalProperties": true}),
            json!({"type": "object", "properties": {"a": true}, "additionalProperties": true}),
            json!({"type": "object", "properties": {"a": true}, "additionalProperties": {"type": "string"}}),
            json!({"type": "object", "properties": {"a": true}, "patternProperties": {"^b": true}, "additionalProperties": true}),
            json!({"const": {"properties": {}}}),
            json!({"type": "array", "items": true}),
        ] {
            check(&open, &open);
        }
        check(&json!({"type": "object"}), &json!({"type": "object", "additionalProperties": true}));
        check(&json!({"title": "T"}), &json!({"title": "T", "$ref": "#/$defs/x-any"}));
        check(
            &json!({"type": "object", "properties": {"a": true}, "required": ["a", "b"]}),
            &json!({"type": "object", "properties": {"a": true, "b": true}, "required": ["a", "b"], "additionalProperties": false}),
        );
        // In all positions; a property can have the name of a keyword.
        let inner = json!({"type": "object", "properties": {"properties": {"type": "string"}}});
        let mut closed = inner.clone();
        closed["additionalProperties"] = false.into();
        check(
            &json!({"$defs": {"d": inner}, "type": "array", "items": inner, "prefixItems": [inner]}),
            &json!({"$defs": {"d": closed}, "type": "array", "items": closed, "prefixItems": [closed]}),
        );
        check(&json!({"anyOf": [inner, {"type": "null"}]}), &json!({"anyOf": [closed, {"type": "null"}]}));
    }

    #[test]
    fn schemas_that_hold_at_once_are_joined() {
        let (a, b) = (
            json!({"properties": {"a": true}, "required": ["a"]}),
            json!({"properties": {"b": true}, "required": ["b", "a"]}),
        );
        let joined = json!({"properties": {"a": true, "b": true}, "required": ["a", "b"], "additionalProperties": false, "type": "object"});
        check(&json!({"allOf": [a, b]}), &joined);
        let parts = |schema: &Value, keys: &[&str]| {
            let found = found(schema);
            keys.iter().map(|key| found[*key].clone()).collect::<Vec<_>>()
        };
        let named = json!({"$defs": {"a": a}, "allOf": [{"$ref": "#/$defs/a"}, b]});
        assert_eq!(
            parts(&named, &["properties", "additionalProperties"]),
            [joined["properties"].clone(), json!(false)]
        );
        let beside = json!({"$defs": {"a": a}, "$ref": "#/$defs/a", "properties": {"b": {}}});
        assert_eq!(parts(&beside, &["properties"]), [json!({"b": true, "a": true})]);
        // A reference with a note, as pydantic writes it, and properties beside alternatives.
        let noted = json!({"$defs": {"a": a}, "allOf": [{"$ref": "#/$defs/a"}], "title": "T"});
        assert_eq!(parts(&noted, &["$ref", "allOf"]), [json!("#/$defs/a"), Value::Null]);
        let both = found(&json!({"type": "object", "properties": {"k": {}}, "anyOf": [a, b]}));
        assert_eq!(both["anyOf"][1]["properties"], json!({"k": true, "b": true, "a": true}), "`a` is required");
        assert_eq!(both["anyOf"][1]["additionalProperties"], false);
        let choice = found(&json!({"allOf": [{"anyOf": [a, b]}, {"properties": {"k": {}}}]}));
        assert_eq!(choice["anyOf"][0]["properties"], json!({"k": true, "a": true}));
        assert_eq!(
            choice["anyOf"][1]["additionalProperties"], false,
            "alternatives of a part are joined with the others"
        );
        // Parts with different keywords, and two parts about the same property.
        let number = json!({"type": "integer", "minimum": 1, "maximum": 5});
        check(&json!({"allOf": [{"type": "integer"}, {"minimum": 1}, {"maximum": 5}]}), &number);
        let twice = json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 1, "maximum": 5}}}]});
        assert_eq!(found(&twice)["properties"]["a"], number);
        // Parts that cannot be joined stay unchanged, and open.
        let mixed = json!({"allOf": [{"properties": {"a": true}}, {"minProperties": 1}]});
        check(&mixed, &mixed);
        let mixed = json!({"$defs": {"a": a}, "allOf": [{"$ref": "#/$defs/a"}, {"minProperties": 1, "properties": {"b": true}}]});
        assert_eq!(found(&mixed)["allOf"][0]["allOf"][0], a, "open, where the definition is closed");
    }

    #[test]
    fn numbers_have_bounds() {
        check(&json!({"type": "integer", "minimum": 0}), &json!({"type": "integer", "minimum": 0, "maximum": MOST}));
        check(
            &json!({"type": ["number", "null"], "exclusiveMaximum": 1}),
            &json!({"type": ["number", "null"], "exclusiveMaximum": 1, "minimum": -MOST}),
        );
    }

    #[test]
    fn schemas_in_themselves_come_to_an_end() {
        let around =
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"x": {}}}]}}, "$ref": "#/$defs/a"});
        assert!(prepared(&around).is_ok());
        let twice = json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"x": {}}}]});
        assert!(prepared(&twice).is_ok());
        // Two lists of different kinds: the joined schema gets a name.
        let node = |more: &str| json!({"properties": {"next": {"$ref": format!("#/$defs/{more}")}, more: {"type": "boolean"}}});
        let both =
            json!({"$defs": {"a": node("a"), "b": node("b")}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
        let found = found(&both);
        assert_eq!(found["properties"]["next"]["$ref"], "#/$defs/x-joined-1");
        assert_eq!(found["$defs"]["x-joined-1"]["properties"]["next"]["$ref"], "#/$defs/x-joined-1");
        assert_eq!(found["$defs"]["x-joined-1"]["properties"]["b"], json!({"type": "boolean"}));
        let mut taken = both.clone();
        taken["$defs"]["x-joined-1"] = json!({"type": "null"});
        let found = super::prepared(&taken).expect("a schema");
        assert_eq!(found["$defs"]["x-joined-1"], json!({"type": "null"}));
        assert_eq!(found["properties"]["next"]["$ref"], "#/$defs/x-joined-2");
        let mut deep = json!({"type": "integer"});
        for _ in 0..100 {
            deep = json!({"type": "array", "items": deep});
        }
        assert!(prepared(&deep).expect_err("too deep").to_string().contains("64 deep"));
    }
}
