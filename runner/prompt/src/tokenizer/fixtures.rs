//! Vocabularies of the reference data: the ids of every text, and texts from ids. For a GGUF file llama.cpp is right, for a folder
//! its `tokenizer.json`.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use formats::Gguf;
use serde_json::Value;
use vocabulary::Vocabulary;

use super::{Special, Tokenizer};

const PLAIN: Special = Special { add: false, parse: true };
const WHOLE: Special = Special { add: true, parse: true };
const AS_TEXT: Special = Special { add: false, parse: false };

/// A folder of the reference data; `None` where they are not here.
fn folder(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("LODE_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    if shared.is_dir() {
        return Some(shared.join("fixtures").join(name));
    }
    let reason = format!("the tokenizers' fixtures: there is no reference data at `{}`", shared.display());
    // `scripts/test` says at the end what was skipped.
    if let Some(list) = std::env::var_os("LODE_TEST_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        list.expect("the list of what is skipped").write_all(format!("{reason}\n").as_bytes()).expect("a line");
    }
    None
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a document")).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|id| id as u32).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn vocabulary(path: &Path) -> Vocabulary {
    let raw = std::fs::read(path).expect("a file");
    let gguf = Gguf::parse(&raw).expect("a header");
    Vocabulary::read(&gguf).expect("it is read").expect("a vocabulary")
}

/// What went wrong, in words.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, found: &T, expected: &T, what: impl FnOnce() -> String) {
        if found != expected {
            self.0.push(format!("{}: {found:?}, expected {expected:?}", what()));
        }
    }

    fn done(self) {
        let few: Vec<&String> = self.0.iter().take(40).collect();
        assert!(few.is_empty(), "{} differences, {few:#?}", self.0.len());
    }
}

#[test]
fn every_way_of_splitting_is_llama_cpp_s() {
    let Some(folder) = folder("gguf/models/_vocab") else { return };
    let golden = json(&folder.join("golden.json"));
    let texts: Vec<&str> = golden["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
    let (all, mut wrong) = (golden["pre"].as_object().expect("names"), Wrong::default());
    assert!(all.len() >= 48, "{}", all.len());
    for (name, expected) in all {
        let tokenizer = Tokenizer::from_vocabulary(vocabulary(&folder.join(format!("{name}.gguf")))).expect(name);
        for (index, text) in texts.iter().enumerate() {
            let found = tokenizer.encode(text, PLAIN).expect("ids");
            wrong.check(&found, &ids(&expected["ids"][index]), || format!("{name} {text:?}"));
            let decoded = expected["decoded_differs"][index.to_string()].as_str().map(bytes);
            let decoded = decoded.unwrap_or_else(|| text.as_bytes().to_vec());
            let found = tokenizer.whole_text(&found, true).expect("a text").into_bytes();
            wrong.check(&found, &decoded, || format!("{name} {text:?} and back"));
        }
        let found = tokenizer.encode(texts[0], WHOLE).expect("ids");
        let expected = ids(&expected["with_special_tokens_of_first"]);
        wrong.check(&found, &expected, || format!("{name} {:?} with special tokens", texts[0]));
    }
    wrong.done();
}

#[test]
fn vocabularies_of_files_are_llama_cpp_s() {
    let Some(folder) = folder("gguf/models") else { return };
    let (mut wrong, mut count) = (Wrong::default(), 0);
    for entry in std::fs::read_dir(&folder).expect("the models").flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().expect("a name"));
        if !path.join("model.gguf").is_file() {
            continue;
        }
        count += 1;
        let golden = json(&path.join("golden.json"));
        let own = vocabulary(&path.join("model.gguf"));
        let mut ends = own.ends.clone();
        ends.sort_unstable();
        wrong.check(&ends, &ids(&golden["end_of_generation"]), || format!("{name}: ends"));
        let tokenizer = Tokenizer::from_vocabulary(own).expect(&name);
        let golden = &golden["tokenizer"];
        for case in golden["cases"].as_array().into_iter().flatten() {
            check_case(&tokenizer, case, &name, &mut wrong);
        }
        let hidden: HashSet<u32> = ids(&golden["hidden_when_special_off"]).into_iter().collect();
        for (id, hex) in (0..).zip(golden["pieces_hex"].as_array().into_iter().flatten()) {
            let piece = bytes(hex.as_str().expect("hexadecimal"));
            let shown = tokenizer.bytes_of(id, true).expect("bytes");
            wrong.check(&shown, &piece, || format!("{name}: token {id}"));
            let text = if hidden.contains(&id) { Vec::new() } else { piece };
            let found = tokenizer.bytes_of(id, false).expect("bytes");
            wrong.check(&found, &text, || format!("{name}: token {id} as text"));
        }
    }
    assert!(count >= 65, "{count}");
    wrong.done();
}

fn check_case(tokenizer: &Tokenizer, case: &Value, name: &str, wrong: &mut Wrong) {
    let text = case["text"].as_str().expect("a text");
    let plain = ids(&case["ids"]);
    let as_text = case.get("ids_special_not_parsed").map_or_else(|| plain.clone(), ids);
    for (special, expected, how) in [
        (PLAIN, &plain, ""),
        (WHOLE, &ids(&case["ids_with_special_tokens"]), " with special tokens"),
        (AS_TEXT, &as_text, " as text"),
    ] {
        wrong.check(&tokenizer.encode(text, special).expect("ids"), expected, || format!("{name} {text:?}{how}"));
    }
    let decoded = case["decoded"].as_str().map(|text| text.as_bytes().to_vec());
    // What is no UTF-8 becomes U+FFFD here.
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let decoded = lossy(decoded.unwrap_or_else(|| bytes(case["decoded_hex"].as_str().expect("hexadecimal"))));
    wrong.check(&tokenizer.whole_text(&plain, true).expect("a text"), &decoded, || format!("{name} {text:?} and back"));
}

#[test]
fn tokenizers_of_folders_are_their_own() {
    let Some(folder) = folder("hf") else { return };
    let manifest = json(&folder.join("manifest.json"));
    let (mut wrong, mut seen) = (Wrong::default(), HashSet::new());
    for (fixture, facts) in manifest["fixtures"].as_object().expect("fixtures") {
        let name = facts["tokenizer"].as_str().expect("a tokenizer");
        if !seen.insert(name) {
            continue;
        }
        let raw = std::fs::read(folder.join(fixture).join("model/tokenizer.json")).expect("a tokenizer");
        let tokenizer = Tokenizer::from_json(&raw).expect(name);
        let golden = json(&folder.join(format!("_tokenizers/{name}.json")));
        for case in golden["cases"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            for (special, key) in [(PLAIN, "ids"), (WHOLE, "ids_with_special_tokens")] {
                let found = tokenizer.encode(text, special).expect("ids");
                wrong.check(&found, &ids(&case[key]), || format!("{name} {text:?}: {key}"));
            }
            let own = ids(&case["ids"]);
            for (with_special, key) in [(true, "decoded"), (false, "decoded_skip_special")] {
                let found = tokenizer.whole_text(&own, with_special).expect("a text");
                wrong.check(&found, &case[key].as_str().expect("a text").to_owned(), || {
                    format!("{name} {text:?}: {key}")
                });
            }
        }
    }
    assert!(seen.len() >= 15, "{seen:?}");
    wrong.done();
}
