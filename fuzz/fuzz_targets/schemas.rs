//! Fuzzes constrained generation with any JSON schema. An answer that is constrained by a schema is
//! JSON, ends only where it may, and has the type and the properties that the schema requires.
//!
//! An input is a schema, optionally followed by a line `====` and bytes that choose among the
//! allowed tokens.
#![no_main]

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use lode_fuzz::assert_told;
use prompt::{Constraint, ConstraintFactory, Tokenizer};
use protocol::Format;
use serde_json::{Map, Value};
use vocabulary::{VocabularyEntry, PieceKind, Vocabulary, VocabularyKind};

/// The token that ends an answer.
const END: u32 = 1;
/// The token of byte 0; the tokens of the other bytes follow in order.
const BYTES: u32 = 2;
/// The most bytes of an answer. After half of them, the choices steer towards its end.
const MOST: usize = 240;
/// Keywords that constrain an object's properties in ways that are not checked here.
const OTHERS: [&str; 8] =
    ["additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "not"];

thread_local! {
    static FACTORY: ConstraintFactory = ConstraintFactory::new(&tokenizer(), &[END]).expect("a factory");
    /// The message of a panic while the library runs; `None` while it does not.
    static IN_LIBRARY: RefCell<Option<String>> = const { RefCell::new(None) };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static ONCE: Once = Once::new();
    ONCE.call_once(let_the_library_panic);
    let parts = lode_fuzz::parts(bytes);
    let Ok(schema) = serde_json::from_slice::<Value>(parts[0]) else { return };
    let choices = parts.get(1).copied().filter(|choices| !choices.is_empty()).unwrap_or(parts[0]);
    let format = Format::Schema { schema: schema.clone() };
    match FACTORY.with(|factory| in_library(|| factory.constraint(&format))) {
        Ok(constraint) => {
            if let Some(text) = answer(constraint, choices) {
                check(&schema, &text);
            }
        }
        Err(error) => assert_told(&error),
    }
});

/// Installs a panic hook that tolerates panics of the library: it panics on some schemas, and the
/// library or [`in_library`] catches that. libFuzzer's own hook would abort the process first.
fn let_the_library_panic() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let is_caught = IN_LIBRARY.with_borrow_mut(|told| match told {
            Some(told) => {
                *told = info.to_string();
                true
            }
            None => false,
        });
        if !is_caught {
            hook(info);
        }
    }));
}

/// Calls code that may panic inside the library. A panic that the library does not catch is raised
/// again, with its message.
fn in_library<T>(work: impl FnOnce() -> T) -> T {
    IN_LIBRARY.set(Some(String::new()));
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    let told = IN_LIBRARY.take().unwrap_or_default();
    done.unwrap_or_else(|_| panic!("nobody catches: {told}"))
}

/// Returns a tokenizer with one token per byte, so that every text can be written.
fn tokenizer() -> Tokenizer {
    let piece = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
    let mut pieces = vec![piece("<unk>", PieceKind::Unknown), piece("</s>", PieceKind::Control)];
    pieces.extend((0..=255).map(|byte: u8| piece(&format!("<0x{byte:02X}>"), PieceKind::Byte)));
    let vocabulary = Vocabulary::new(VocabularyKind::SentencePiece, pieces);
    Tokenizer::from_vocabulary(Vocabulary { eos: Some(END), unknown: Some(0), ..vocabulary }).expect("a tokenizer")
}

/// Generates an answer, choosing each byte among the allowed ones. Returns `None` if the answer
/// does not end in time or the library gives up.
fn answer(mut constraint: Constraint, choices: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for step in 0..MOST {
        if in_library(|| constraint.is_finished()) {
            return Some(text);
        }
        let words = in_library(|| constraint.allowed()).ok()?;
        let is_allowed = |id: u32| words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        let bytes: Vec<u8> = (0..=255).filter(|byte| is_allowed(BYTES + u32::from(*byte))).collect();
        let ends = step > MOST / 2 || choices[step % choices.len()] % 8 == 0;
        if is_allowed(END) && (ends || bytes.is_empty()) {
            return Some(text);
        }
        assert!(!bytes.is_empty(), "nothing may follow `{}`", String::from_utf8_lossy(&text));
        let choice = usize::from(choices[step % choices.len()]) + step / choices.len();
        let closing = bytes.iter().find(|byte| b"\"}]".contains(byte)).filter(|_| step > MOST / 2);
        let byte = *closing.unwrap_or(&bytes[choice % bytes.len()]);
        in_library(|| constraint.accept(BYTES + u32::from(byte))).ok()?;
        text.push(byte);
    }
    None
}

fn check(schema: &Value, text: &[u8]) {
    let text = std::str::from_utf8(text).expect("an answer is text");
    serde_json::from_str::<serde::de::IgnoredAny>(text).unwrap_or_else(|error| panic!("{schema}: `{text}`: {error}"));
    // A number may exceed every type that can parse it, if the schema itself contains such a
    // number.
    let (Some(schema), Ok(value)) = (schema.as_object(), serde_json::from_str::<Value>(text)) else { return };
    if schema.keys().any(|key| ["allOf", "anyOf", "oneOf", "$ref"].contains(&key.as_str())) {
        return;
    }
    let fits = match schema.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number" | "integer") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => true,
    };
    assert!(fits, "{schema:?}: `{text}` is of another type");
    if let Some(object) = value.as_object() {
        check_properties(schema, object);
    }
}

/// Checks that an object has every required property and, if the schema lists the properties, no
/// other ones.
fn check_properties(schema: &Map<String, Value>, object: &Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let required: Vec<&str> = required.iter().filter_map(Value::as_str).collect();
    let is_const = schema.contains_key("const") || schema.contains_key("enum");
    assert!(is_const || required.iter().all(|name| object.contains_key(*name)), "{schema:?}: {object:?} lacks some");
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    if is_const || OTHERS.iter().any(|key| schema.contains_key(*key)) {
        return;
    }
    let is_named = |name: &String| properties.contains_key(name) || required.contains(&name.as_str());
    assert!(object.keys().all(is_named), "{schema:?}: {object:?} has others");
}
