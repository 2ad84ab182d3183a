//! Tests of JSON schemas.

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
    assert_eq!(parts(&named, &["properties", "additionalProperties"]), [joined["properties"].clone(), json!(false)]);
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
    assert_eq!(choice["anyOf"][1]["additionalProperties"], false, "alternatives of a part are joined with the others");
    // Parts with different keywords, and two parts about the same property.
    let number = json!({"type": "integer", "minimum": 1, "maximum": 5});
    check(&json!({"allOf": [{"type": "integer"}, {"minimum": 1}, {"maximum": 5}]}), &number);
    let twice = json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 1, "maximum": 5}}}]});
    assert_eq!(found(&twice)["properties"]["a"], number);
    // Parts that cannot be joined stay unchanged, and open.
    let mixed = json!({"allOf": [{"properties": {"a": true}}, {"minProperties": 1}]});
    check(&mixed, &mixed);
    let mixed =
        json!({"$defs": {"a": a}, "allOf": [{"$ref": "#/$defs/a"}, {"minProperties": 1, "properties": {"b": true}}]});
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
    let node =
        |more: &str| json!({"properties": {"next": {"$ref": format!("#/$defs/{more}")}, more: {"type": "boolean"}}});
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
