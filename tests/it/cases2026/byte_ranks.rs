//! Folders whose vocabulary is a list of byte sequences by rank: `tekken.json`, or a tiktoken file.
//! They tokenize like a `tokenizer.json` with the same tokens.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{fixtures, json as read_json, list};

const TEXTS: [&str; 5] = [
    "The sky is blue, isn't it?",
    "  indented\n\n\tlines \r\n",
    "1234 números, 漢字 & émojis 🙂",
    "def f(x):\n    return x",
    "",
];
/// The pattern by which Kimi's tokenizer splits text (`tokenization_kimi.py`).
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+"
);
/// The number of special tokens in the tekken vocabulary; they precede all other tokens.
const SPECIAL: u64 = 8;

#[tokio::test]
async fn tokens_by_rank_are_those_of_the_same_vocabulary() {
    let test = "cases2026::byte_ranks::tokens_by_rank_are_those_of_the_same_vocabulary";
    let Some(hf) = fixtures(test, "hf") else { return };
    let model = hf.join("qwen3/model");
    let mut known = read_json(&model.join("tokenizer.json"));
    let tokens = tokens(&known);
    known["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = KIMI.into();
    known["model"]["ignore_merges"] = true.into();
    let same = folder(&model, "tokenizer.json", &known.to_string());
    let lines: Vec<String> = tokens.iter().enumerate().map(|(rank, token)| format!("{token} {rank}\n")).collect();
    let tiktoken = folder(&model, "tiktoken.model", &lines.concat());
    let vocab = tokens.iter().enumerate().map(|(rank, token)| json!({"rank": rank, "token_bytes": token}));
    let sizes = json!({"pattern": KIMI, "default_vocab_size": tokens.len() as u64 + SPECIAL, "default_num_special_tokens": SPECIAL});
    let special = json!([{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]);
    let tekken = json!({"config": sizes, "vocab": vocab.collect::<Vec<Value>>(), "special_tokens": special});
    let tekken = folder(&model, "tekken.json", &tekken.to_string());
    let server = Server::start(&[]).await;
    for (name, path) in [("known", same.path()), ("tiktoken", tiktoken.path()), ("tekken", tekken.path())] {
        server.create(name, path).await;
    }
    for text in TEXTS {
        let of = async |name: &str, text: &str| {
            let answer = server.ask("/tokenize", &json!({"model": name, "content": text})).await;
            list(&answer["tokens"]).iter().map(|id| id.as_u64().expect("a token")).collect::<Vec<u64>>()
        };
        let expected = of("known", text).await;
        assert_eq!(of("tiktoken", text).await, expected, "{text:?}");
        let shifted: Vec<u64> = expected.iter().map(|id| id + SPECIAL).collect();
        assert_eq!(of("tekken", text).await, shifted, "{text:?}");
    }
    let special = server.ask("/tokenize", &json!({"model": "tekken", "content": "</s>", "add_special": true})).await;
    assert_eq!(special["tokens"], json!([1, 2]), "a text begins with <s>");
    let ask = |name: &str| json!({"model": name, "prompt": "The sky", "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 8}});
    let answers =
        [server.ask("/api/generate", &ask("known")).await, server.ask("/api/generate", &ask("tiktoken")).await];
    assert_eq!(answers[0]["response"], answers[1]["response"]);
}

/// Returns the bytes of the tokens in base64, in the order of their ids.
fn tokens(tokenizer: &Value) -> Vec<String> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens: Vec<(u64, &String)> =
        vocabulary.iter().map(|(text, id)| (id.as_u64().expect("an id"), text)).collect();
    tokens.sort_unstable();
    let hidden: Vec<char> = (0x100..0x144).map(|code| char::from_u32(code).expect("a letter")).collect();
    let unseen: Vec<u8> = (0..=255).filter(|byte| !matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).collect();
    let byte = |letter: char| match hidden.iter().position(|own| *own == letter) {
        Some(at) => unseen[at],
        None => u8::try_from(u32::from(letter)).expect("a byte"),
    };
    tokens.iter().map(|(_, text)| STANDARD.encode(text.chars().map(byte).collect::<Vec<u8>>())).collect()
}

/// Copies the model's folder with this document in place of its `tokenizer.json`.
fn folder(model: &Path, name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors", "generation_config.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).expect("a copy");
    }
    let mut config = read_json(&model.join("tokenizer_config.json"));
    config["tokenizer_class"] = "TikTokenTokenizer".into();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("written");
    std::fs::write(folder.path().join(name), text).expect("written");
    folder
}
