//! Tests with random logits: for any prediction of a model, the generated text conforms.

use proptest::prelude::*;
use proptest::test_runner::Config;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use vocabulary::{PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};

use super::*;
use crate::{OutputReader, Part, Reading};

/// The token that ends an answer.
pub(super) const END: u32 = 1;
/// Maximum number of tokens; an answer that is incomplete by then is cut off and ignored.
const MOST: usize = 300;

/// Creates a tokenizer of single bytes, characters and pieces of JSON; `<tool_call>` and `<think>`
/// are tokens.
pub(super) fn tokenizer() -> Tokenizer {
    let piece = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
    let mut pieces = vec![piece("<unk>", PieceKind::Unknown), piece("</s>", PieceKind::Control)];
    pieces.extend((0..=255).map(|byte: u8| piece(&format!("<0x{byte:02X}>"), PieceKind::Byte)));
    for text in ["<tool_call>", "</tool_call>", "<think>", "</think>"] {
        pieces.push(piece(text, PieceKind::UserDefined));
    }
    for text in [
        "{\"",
        "\":",
        "\",",
        "\"}",
        "}}",
        "]}",
        "true",
        "fal",
        "name",
        "é",
        "日本",
        "\u{2581}",
        "\u{2581}a",
        "12",
        "ab",
        "\n",
    ] {
        pieces.push(piece(text, PieceKind::Normal));
    }
    Tokenizer::from_vocabulary(Vocabulary {
        eos: Some(END),
        unknown: Some(0),
        ..Vocabulary::new(VocabularyKind::SentencePiece, pieces)
    })
    .expect("a tokenizer")
}

/// Generates an answer from random logits; `None` if it did not end.
pub(super) fn answer(tokenizer: &Tokenizer, mut constraint: Constraint, rng: &mut StdRng) -> Option<String> {
    let mut ids = Vec::new();
    for _ in 0..MOST {
        if constraint.is_finished() {
            assert!(constraint.can_end());
            return Some(tokenizer.decode(&ids, true).expect("text"));
        }
        // Longer than the vocabulary, as with padded matrices. Closing tokens are more likely, so
        // that answers end.
        let mut logits: Vec<f32> = (0..tokenizer.size() + 7).map(|_| rng.random_range(0.0..1.0)).collect();
        for id in ids_of(tokenizer, &["\"}", "}}", "]}", "<0x22>", "<0x7D>", "<0x5D>"]) {
            logits[id as usize] += 0.7;
        }
        constraint.mask(&mut logits).expect("a mask");
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("logits");
        assert!(best.1.is_finite(), "something is allowed");
        let token = best.0 as u32;
        if token == END {
            assert!(constraint.can_end());
            return Some(tokenizer.decode(&ids, true).expect("text"));
        }
        constraint.accept(token).expect("it was allowed");
        ids.push(token);
    }
    None
}

fn ids_of<'a>(tokenizer: &Tokenizer, texts: &'a [&'a str]) -> Vec<u32> {
    texts.iter().filter_map(|text| tokenizer.id(text)).collect()
}

/// Generates `count` answers with fixed seeds; at least a third of them must end.
fn answers(tokenizer: &Tokenizer, count: usize, constraint: impl Fn() -> Constraint) -> Vec<String> {
    let seeded = |seed| answer(tokenizer, constraint(), &mut StdRng::seed_from_u64(seed));
    let told: Vec<String> = (0..count as u64).filter_map(seeded).collect();
    assert!(told.len() * 3 >= count, "{} of {count} answers ended", told.len());
    told
}

/// Generates answers for a schema, and checks each with a predicate.
fn check(schema: &Value, fits: impl Fn(&Value) -> bool) {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer, &[END]).expect("a factory");
    let format = Format::Schema { schema: schema.clone() };
    for text in answers(&tokenizer, 60, || factory.constraint(&format).expect("a constraint")) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(fits(&value), "{schema}: {text}");
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[test]
fn objects_have_what_is_required_and_nothing_else() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "kind": {"enum": ["ab", "é", 12]}, "old": {"type": "boolean"}},
        "required": ["name", "kind"],
        "additionalProperties": false,
    });
    check(&schema, |value| {
        let known = keys(value).iter().all(|key| ["name", "kind", "old"].contains(key));
        let kind = [json!("ab"), json!("é"), json!(12)].contains(&value["kind"]);
        known && kind && value["name"].is_string() && value.get("old").is_none_or(Value::is_boolean)
    });
}

#[test]
fn lists_and_numbers_keep_their_bounds() {
    let schema = json!({
        "type": "array",
        "items": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
            "additionalProperties": false},
        "minItems": 1, "maxItems": 3,
    });
    check(&schema, |value| {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        (1..=3).contains(&items.len()) && items.iter().all(|item| item["n"].as_u64().is_some_and(|n| n <= 99))
    });
}

fn is_node(value: &Value) -> bool {
    keys(value) == ["next"] && (value["next"].is_null() || is_node(&value["next"]))
}

#[test]
fn definitions_are_followed() {
    let schema = json!({
        "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}},
        "$ref": "#/$defs/node",
    });
    check(&schema, is_node);
}

#[test]
fn additional_properties_have_their_type() {
    let schema = json!({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2});
    check(&schema, |value| value.as_object().is_some_and(|map| map.len() <= 2 && map.values().all(Value::is_boolean)));
}

#[test]
fn strings_are_whole_characters() {
    check(&json!({"type": "string", "minLength": 2, "maxLength": 6}), |value| {
        value.as_str().is_some_and(|text| (2..=6).contains(&text.chars().count()))
    });
    check(&json!({"const": "日本 é\n"}), |value| value == "日本 é\n");
}

#[test]
fn any_object_is_an_object() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer, &[END]).expect("a factory");
    for text in answers(&tokenizer, 50, || factory.constraint(&Format::Json).expect("a constraint")) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(value.is_object(), "{text}");
    }
}

#[test]
fn tokens_of_a_tokenizer_json_count_by_their_bytes() {
    // Byte-level: `Ġ` is a space, `é` takes two tokens.
    let vocabulary = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
    let texts = ["\"", "a", "Ġ", "Ã", "©", "\"a", "a\""];
    let mut pieces: Vec<VocabularyEntry> = texts.iter().map(|text| vocabulary(text, PieceKind::Normal)).collect();
    pieces.push(vocabulary("<end>", PieceKind::Control));
    let kind = VocabularyKind::ByteLevel { pre_tokenizer: "gpt-2".to_owned(), merges: Vec::new() };
    let vocabulary = Vocabulary { eos: Some(7), ..Vocabulary::new(kind, pieces) };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).expect("a tokenizer");
    let factory = ConstraintFactory::new(&tokenizer, &[7]).expect("a factory");
    let mut constraint = factory.constraint(&Format::Schema { schema: json!({"const": "a é"}) }).expect("a constraint");
    let allowed = |constraint: &mut Constraint| {
        let mut logits = [0.0; 9];
        constraint.mask(&mut logits).expect("a mask");
        (0..9).filter(|id| logits[*id as usize].is_finite()).collect::<Vec<u32>>()
    };
    for (expect, next) in [(&[0, 5][..], 5), (&[2], 2), (&[3], 3), (&[4], 4), (&[0], 0)] {
        assert_eq!(allowed(&mut constraint), expect);
        assert!(!constraint.is_finished() && !constraint.can_end());
        constraint.accept(next).expect("allowed");
    }
    assert!(constraint.is_finished() && constraint.can_end());
    assert!(constraint.accept(1).is_err(), "nothing follows");
}

#[test]
fn thinking_may_come_first() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer, &[]).expect("a factory");
    let think = tokenizer.id("<think>").expect("a token");
    let mut constraint = factory.constraint(&Format::Json).expect("a constraint");
    constraint.or_first(think);
    let mut logits = vec![0.0; tokenizer.size()];
    constraint.mask(&mut logits).expect("a mask");
    assert!(logits[think as usize].is_finite());
    constraint.accept(think).expect("allowed");
    let mut logits = vec![0.0; tokenizer.size()];
    constraint.mask(&mut logits).expect("a mask");
    assert!(logits[think as usize].is_infinite(), "once only");
    assert!(logits[tokenizer.id("{\"").expect("a token") as usize].is_finite(), "the answer begins as if nothing was");
    assert!(constraint.accept(think).is_err());
}

#[test]
fn calls_that_are_asked_for_are_read_as_such() {
    let offered = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
    ]);
    let tools = Tools::new(Some(&offered));
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer, &[END]).expect("a factory");
    let templates = [
        "tools <tool_call>",
        "tools",
        "tools <|python_tag|>",
        "tools [TOOL_CALLS]",
        "tools <|tool_call|>",
        "tools <｜tool▁calls▁begin｜>",
        "tools <|tool_calls_section_begin|>",
        "tools <function=",
        "tools <|tool_call_start|>",
        "tools <|START_ACTION|>",
        "tools <function_calls>",
        "tools <|tool_call>call:",
        "tools <start_function_call>",
        "tools <minimax:tool_call>",
        "tools <｜DSML｜",
        "tools <|function_call|>",
        "tools <TOOLCALL>",
        "tools <|tool_call:args|>",
        "tools <|tools_prefix|>",
        "<|channel|><|message|>",
    ];
    for template in templates {
        let dialect = Dialect::detect(template, &|_| false);
        for choice in [ToolChoice::Required, ToolChoice::Named { name: "weather".to_owned() }] {
            let constraint = || factory.call(&tokenizer, &dialect, &tools, &choice).expect("a constraint");
            for text in answers(&tokenizer, 6, constraint) {
                let reading = Reading { prompt: "<|start|>assistant", tools: tools.clone(), thinking: true };
                let mut reader = OutputReader::new(&dialect, reading);
                let parts = [reader.push(&text), reader.finish()].concat();
                let [Part::ToolCall { name, arguments }] = &parts[..] else { panic!("{template}: {text}: {parts:?}") };
                match name.as_str() {
                    "weather" => assert!(arguments["days"].as_u64().is_some_and(|days| days < 10)),
                    "now" => assert!(choice == ToolChoice::Required && arguments.is_empty()),
                    other => panic!("{other}"),
                }
            }
        }
    }
    let missing = factory.call(&tokenizer, &Dialect::default(), &tools, &ToolChoice::Named { name: "x".to_owned() });
    assert!(missing.expect_err("not offered").to_string().contains("`x`"));
    assert!(factory.call(&tokenizer, &Dialect::default(), &Tools::default(), &ToolChoice::Required).is_err());
}

#[test]
fn what_cannot_be_held_to_is_refused_by_name() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer, &[END]).expect("a factory");
    for (schema, named) in [
        (json!({"type": "object", "if": {}}), "if"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"type": "unknown"}), "unknown"),
        (json!([1]), "[1]"),
        (json!({"type": "string", "pattern": "("}), "("),
        (json!({"enum": []}), "empty"),
        (json!({"type": "object", "required": ["é".repeat(200)], "properties": "é".repeat(200)}), ""),
    ] {
        let error = factory.constraint(&Format::Schema { schema: schema.clone() }).expect_err("refused").to_string();
        assert!(error.starts_with("the format cannot be used: ") && error.contains(named), "{schema}: {error}");
    }
}

#[test]
fn constraints_go_where_the_generation_is() {
    fn moves<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    moves::<Constraint>();
    shared::<ConstraintFactory>();
}

proptest! {
    #![proptest_config(Config::with_cases(64))]

    #[test]
    fn no_schema_ends_the_process(text in r#"[{}\[\]":,a-zé$/# 0-9]{0,40}"#, key in prop::sample::select(&["type", "$ref", "pattern", "enum", "properties", "items", "format", "required"][..])) {
        let tokenizer = tokenizer();
        let factory = ConstraintFactory::new(&tokenizer, &[END]).expect("a factory");
        let value = serde_json::from_str(&text).unwrap_or(Value::from(text));
        let _ = factory.constraint(&Format::Schema { schema: json!({ key: value }) });
    }
}

#[test]
fn digits_of_numbers_are_counted() {
    for (text, digits) in [
        (r#"{"a": 12345"#, 5),
        (r#"{"a": "12345"#, 0),
        (r#"{"a": "1\"23", "b": 67"#, 2),
        ("[1, 2", 1),
        (r#"{"a": "\\", "b": 678"#, 3),
    ] {
        let mut number = super::Number::default();
        text.bytes().for_each(|byte| number.push(byte));
        assert_eq!(number.digits, digits, "{text}");
    }
}
