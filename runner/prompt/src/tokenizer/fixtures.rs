//! Tests with the vocabularies of the reference data: the ids of every text, and texts from ids.
//! The reference is llama.cpp for a GGUF file, and the `tokenizer.json` for a folder.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use formats::Gguf;
use serde_json::Value;
use vocabulary::Vocabulary;

use super::{Special, Tokenizer};
use crate::reference_data::{fixtures, skipped};

const PLAIN: Special = Special { add: false, parse: true };
const WHOLE: Special = Special { add: true, parse: true };
const AS_TEXT: Special = Special { add: false, parse: false };

/// Returns a folder of the reference data; `None` if it is absent.
fn folder(name: &str) -> Option<PathBuf> {
    fixtures("the tokenizers' fixtures", name)
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

/// Messages of failed checks.
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
    // Bytes that are not UTF-8 become U+FFFD here.
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

/// Returns a random text of words, digits, punctuation, runs of one character, control characters,
/// letters of many scripts, and special tokens.
fn random_text(random: &mut impl rand::Rng, special: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..random.random_range(1..12) {
        match random.random_range(0..9) {
            0 => text.push_str(
                ["hello", " World", "don't", "I'M", " we've", "Straße", "naïve", "été"][random.random_range(0..8)],
            ),
            1 => text.push_str(&random.random_range(0..1_000_000_000u64).to_string()),
            2 => text.push_str(["\n", "\r\n", "\t", "  ", "\u{a0}", "\u{3000}", " \n "][random.random_range(0..7)]),
            3 => {
                let c = ['a', ' ', '0', '.', '\n', 'é', '漢', '\u{301}'][random.random_range(0..8)];
                text.extend(std::iter::repeat_n(c, random.random_range(1..200)));
            }
            4 => text.extend((0..random.random_range(1..6)).map(|_| char::from(random.random_range(0..32u8)))),
            5 => text.extend((0..random.random_range(1..8)).map(|_| char::from(random.random_range(33..127u8)))),
            6 => text.extend(
                (0..random.random_range(1..6)).filter_map(|_| char::from_u32(random.random_range(0x80..0x3000))),
            ),
            7 => text.extend(
                (0..random.random_range(1..4)).filter_map(|_| char::from_u32(random.random_range(0x3000..0x2_0000))),
            ),
            _ if special.is_empty() => text.push('<'),
            _ => text.push_str(&special[random.random_range(0..special.len())]),
        }
    }
    text
}

/// Compares the tokens of random texts with Python's `tokenizers`, for every tokenizer of the
/// fixtures. `scripts/campaign tokenizers` runs more of them.
#[test]
fn random_texts_are_cut_as_python_does() {
    use rand::SeedableRng;
    let Some(folder) = folder("hf") else { return };
    let Some(python) = std::env::var_os("LODE_TEST_MLX") else {
        return skipped(
            "random texts: LODE_TEST_MLX names no Python with the package `tokenizers`; scripts/test makes one",
        );
    };
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (count, seed) = (number("LODE_CAMPAIGN_TEXTS").unwrap_or(100), number("LODE_CAMPAIGN_SEED").unwrap_or(13));
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let manifest = json(&folder.join("manifest.json"));
    let (mut seen, mut work) = (HashSet::new(), Vec::new());
    for (fixture, facts) in manifest["fixtures"].as_object().expect("fixtures") {
        if seen.insert(facts["tokenizer"].as_str().expect("a tokenizer")) {
            let path = folder.join(fixture).join("model/tokenizer.json");
            let added = json(&path)["added_tokens"].as_array().cloned().unwrap_or_default();
            let special: Vec<String> =
                added.iter().filter_map(|token| token["content"].as_str().map(str::to_owned)).collect();
            let texts: Vec<String> = (0..count).map(|_| random_text(&mut random, &special)).collect();
            work.push((path, texts));
        }
    }
    let input = serde_json::to_vec(&work).expect("JSON");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/tokenizer_ids.py");
    let mut child = std::process::Command::new(python)
        .arg(script)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || pipe.write_all(&input));
    let output = child.wait_with_output().expect("an answer");
    writer.join().expect("no panic").expect("all is written");
    assert!(output.status.success(), "the script failed");
    let expected: Vec<Vec<[Vec<u32>; 2]>> = serde_json::from_slice(&output.stdout).expect("ids");
    let mut wrong = Wrong::default();
    for ((path, texts), expected) in work.iter().zip(expected) {
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).expect("a tokenizer")).expect("it is read");
        assert_eq!(texts.len(), expected.len());
        for (text, [plain, whole]) in texts.iter().zip(expected) {
            wrong
                .check(&tokenizer.encode(text, PLAIN).expect("ids"), &plain, || format!("{} {text:?}", path.display()));
            wrong
                .check(&tokenizer.encode(text, WHOLE).expect("ids"), &whole, || format!("{} {text:?}", path.display()));
        }
    }
    wrong.done();
}
