//! `tekken.json` and tiktoken files: tokens as bytes, by rank, for folders that have no
//! `tokenizer.json`. They are converted to a `tokenizer.json`.
//!
//! Two neighboring tokens are merged if their concatenation is a token, the lowest rank first. The
//! merges are therefore all ways to split a token into two tokens, ordered by the token's rank.
//! Sources: mistral-common's `tekken.py`, tiktoken's `load.py`, and transformers'
//! `TikTokenConverter`, which orders the merges of one token by the ranks of their parts.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Error;

/// Tokenizer classes that read tiktoken files, with the pattern that each splits text by.
const SPLITS: [(&str, &str); 1] = [("TikTokenTokenizer", KIMI)];
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The special tokens of files that list none, as in mistral-common's versions up to 3; the
/// remaining ones are named `<SPECIAL_N>`.
const OLDER: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// The token that begins every text of a tekken vocabulary.
const BEGIN: &str = "<s>";
/// Maximum number of tokens in a vocabulary.
const MOST: usize = 1 << 22;
/// Maximum length of a token in bytes.
const LONGEST: usize = 1 << 10;
/// Maximum bytes of all merges together, which keeps the result in proportion to the document.
const MOST_MERGED: usize = 256 << 20;

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: usize,
    token_str: String,
}

/// Converts a `tekken.json` to a `tokenizer.json`: the special tokens first, then as many other
/// tokens as the model has.
///
/// # Errors
/// The document is malformed, or its numbers contradict each other.
pub fn of_tekken(raw: &[u8]) -> Result<Vec<u8>, Error> {
    let fail = |reason: String| Error(format!("`tekken.json`: {reason}"));
    let Tekken { config, mut vocab, special_tokens } =
        serde_json::from_slice(&formats::json::tolerant(raw)).map_err(|error| fail(error.to_string()))?;
    let TekkenConfig { pattern, default_vocab_size: size, default_num_special_tokens: count } = config;
    let normal = size.checked_sub(count).filter(|normal| *normal <= vocab.len() && size <= MOST);
    let normal = normal.ok_or_else(|| {
        fail(format!("{size} tokens with {count} special ones cannot be made of {} others", vocab.len()))
    })?;
    let mut special: Vec<String> = (0..count).map(|at| format!("<SPECIAL_{at}>")).collect();
    let older = || {
        OLDER.iter().take(count).enumerate().map(|(rank, text)| SpecialToken { rank, token_str: (*text).to_owned() })
    };
    for SpecialToken { rank, token_str } in special_tokens.unwrap_or_else(|| older().collect()) {
        let place =
            special.get_mut(rank).ok_or_else(|| fail(format!("`{token_str}` has the rank {rank} of {count}")))?;
        *place = token_str;
    }
    vocab.sort_by_key(|token| token.rank);
    let mut tokens = Vec::with_capacity(normal);
    for (expected, TekkenToken { rank, token_bytes }) in vocab.into_iter().take(normal).enumerate() {
        let bytes = STANDARD.decode(&token_bytes).ok().filter(|_| rank == expected);
        tokens.push(bytes.ok_or_else(|| fail(format!("rank {expected} has no token, or one that is not base64")))?);
    }
    let special = special.into_iter().enumerate().collect();
    document(&pattern, &tokens, count, special, Some(BEGIN))
}

/// Whether a document is a tiktoken file: each line contains a token in base64 and its rank.
pub fn is_tiktoken(raw: &[u8]) -> bool {
    let first = raw.split(|byte| *byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    first.and_then(line).is_some()
}

/// Converts a tiktoken file to a `tokenizer.json`. `config` is the `tokenizer_config.json` of the
/// same folder, which lists the special tokens.
///
/// # Errors
/// The file is malformed, or the tokenizer's class is unknown.
pub fn of_tiktoken(raw: &[u8], config: &Value) -> Result<Vec<u8>, Error> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let split = SPLITS.iter().find(|(own, _)| *own == class).map(|(_, split)| *split);
    let split = split.ok_or_else(|| match class {
        "" => Error("`tokenizer_config.json` names no `tokenizer_class`, which says how text is split".to_owned()),
        _ => Error(format!(
            "how `{class}` splits text is not known without `tokenizer.json`; save the tokenizer with its fast class"
        )),
    })?;
    let text = std::str::from_utf8(raw).map_err(|_| Error("the file of tiktoken is not text".to_owned()))?;
    let mut tokens = Vec::new();
    for own in text.lines().filter(|line| !line.trim().is_empty()) {
        let token = line(own).filter(|(rank, _)| *rank == tokens.len() && *rank < MOST);
        let (_, bytes) = token.ok_or_else(|| {
            Error(format!(
                "the file of tiktoken has no token of rank {} in its line, expected base64 and the rank",
                tokens.len()
            ))
        })?;
        tokens.push(bytes);
    }
    let added = config.get("added_tokens_decoder").and_then(Value::as_object);
    let added = added
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, token.get("content")?.as_str()?.to_owned())));
    let mut special: Vec<(usize, String)> = added.filter(|(id, _)| *id < MOST).collect();
    special.sort_unstable();
    document(split, &tokens, 0, special, None)
}

/// Parses a line into the rank and the bytes of a token.
fn line(line: &str) -> Option<(usize, Vec<u8>)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, STANDARD.decode(token).ok()?))
}

/// Builds a `tokenizer.json` from tokens whose ids are their ranks plus `first`, and from special
/// tokens with their ids.
fn document(
    pattern: &str,
    tokens: &[Vec<u8>],
    first: usize,
    special: Vec<(usize, String)>,
    begin: Option<&str>,
) -> Result<Vec<u8>, Error> {
    let letters = letters();
    let text = |bytes: &[u8]| -> String { bytes.iter().map(|byte| letters[usize::from(*byte)]).collect() };
    let mut vocabulary = Map::new();
    let mut added = Vec::new();
    for (id, content) in special {
        added.push(json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}));
        vocabulary.insert(content, id.into());
    }
    for (rank, token) in tokens.iter().enumerate() {
        // A normal token that is spelled like a special token is never produced from text.
        vocabulary.entry(text(token)).or_insert_with(|| (first + rank).into());
    }
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let (mut merges, mut merged) = (Vec::new(), 0usize);
    for token in tokens {
        if token.len() > LONGEST {
            return Err(Error(format!(
                "a token of the vocabulary has {} bytes, expected at most {LONGEST}",
                token.len()
            )));
        }
        let cut = |at| {
            let (left, right) = token.split_at(at);
            Some((*ranks.get(left)?, *ranks.get(right)?, at))
        };
        let mut cuts: Vec<_> = (1..token.len()).filter_map(cut).collect();
        cuts.sort_unstable();
        merged = merged.saturating_add(cuts.len().saturating_mul(token.len()));
        if merged > MOST_MERGED {
            return Err(Error(format!("the merges of the vocabulary have more than {MOST_MERGED} bytes")));
        }
        merges.extend(cuts.into_iter().map(|(_, _, at)| json!([text(&token[..at]), text(&token[at..])])));
    }
    let by_byte = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let around = begin.and_then(|begin| Some((begin, vocabulary.get(begin)?.clone()))).map(|(begin, id)| {
        let own = json!({"SpecialToken": {"id": begin, "type_id": 0}});
        let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
        json!({"type": "TemplateProcessing", "single": [own, text("A", 0)],
            "pair": [own, text("A", 0), own, text("B", 1)],
            "special_tokens": {begin: {"id": begin, "ids": [id], "tokens": [begin]}}})
    });
    let document = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, by_byte]}, "post_processor": around,
        "decoder": by_byte,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocabulary, "merges": merges}});
    Ok(document.to_string().into_bytes())
}

/// Returns the letter that GPT-2's vocabularies use for each byte: the byte itself if it is
/// printable, else a letter from U+0100 on.
fn letters() -> [char; 256] {
    let mut next = 0x100..;
    std::array::from_fn(|byte| {
        let is_seen = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_seen { u32::try_from(byte).ok() } else { next.next() };
        code.and_then(char::from_u32).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tekken(special: Option<&Value>) -> Vec<u8> {
        let token = |(rank, bytes): (usize, &&[u8])| json!({"rank": rank, "token_bytes": STANDARD.encode(bytes)});
        let tokens: [&[u8]; 6] = [b"a", b"b", b" ", b"ab", b" ab", b"left out"];
        let vocab: Vec<Value> = tokens.iter().enumerate().map(token).collect();
        let config = json!({"pattern": "x", "default_vocab_size": 8, "default_num_special_tokens": 3});
        let mut all = json!({"config": config, "vocab": vocab});
        if let Some(special) = special {
            all["special_tokens"] = special.clone();
        }
        all.to_string().into_bytes()
    }

    #[test]
    fn special_tokens_are_first_and_merges_are_by_rank() {
        let made = of_tekken(&tekken(None)).expect("it is read");
        let made: Value = serde_json::from_slice(&made).expect("JSON");
        let vocabulary = json!({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "Ġ": 5, "ab": 6, "Ġab": 7});
        assert_eq!(made["model"]["vocab"], vocabulary);
        assert_eq!(made["model"]["merges"], json!([["a", "b"], ["Ġ", "ab"]]));
        assert_eq!(made["post_processor"]["special_tokens"]["<s>"]["ids"], json!([1]));
        let named = json!([{"rank": 1, "token_str": "<s>", "is_control": true}]);
        let made = of_tekken(&tekken(Some(&named))).expect("it is read");
        let made: Value = serde_json::from_slice(&made).expect("JSON");
        assert_eq!((&made["model"]["vocab"]["<SPECIAL_0>"], &made["model"]["vocab"]["<s>"]), (&json!(0), &json!(1)));
    }

    #[test]
    fn lines_of_tiktoken_are_read() {
        let config = json!({"tokenizer_class": "TikTokenTokenizer",
            "added_tokens_decoder": {"3": {"content": "[EOS]", "special": true}}});
        let raw = b"YQ== 0\nYg== 1\r\nYWI= 2\n";
        assert!(is_tiktoken(raw) && !is_tiktoken(b"\x0a\x0e\x0a\x05<unk>\x15") && !is_tiktoken(b""));
        let made: Value = serde_json::from_slice(&of_tiktoken(raw, &config).expect("it is read")).expect("JSON");
        assert_eq!(made["model"]["vocab"], json!({"[EOS]": 3, "a": 0, "b": 1, "ab": 2}));
        let long = [STANDARD.encode([b'a'; LONGEST + 1]).as_bytes(), b" 0\n"].concat();
        for (raw, config, says) in [
            (&long[..], &config, "expected at most 1024"),
            (raw, &json!({}), "names no `tokenizer_class`"),
            (&b"YQ== 1\n"[..], &config, "rank 0"),
            (b"YQ== 0\nYg==\n", &config, "rank 1"),
            (raw, &json!({"tokenizer_class": "XTokenizer"}), "`XTokenizer`"),
        ] {
            let error = of_tiktoken(raw, config).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (from, to, says) in [
            ("\"default_vocab_size\":8", "\"default_vocab_size\":10", "10 tokens with 3 special ones"),
            ("\"default_vocab_size\":8", "\"default_vocab_size\":2", "2 tokens with 3 special ones"),
            ("\"rank\":1,", "\"rank\":0,", "rank 1 has no token"),
            ("\"YQ==\"", "\"?\"", "rank 0 has no token"),
        ] {
            let text = String::from_utf8(tekken(None)).expect("text");
            assert!(text.contains(from), "{text}");
            let error = of_tekken(text.replace(from, to).as_bytes()).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        let special = json!([{"rank": 3, "token_str": "<s>"}]);
        let error = of_tekken(&tekken(Some(&special))).expect_err("its rank is too high").to_string();
        assert!(error.contains("rank 3 of 3"), "{error}");
    }
}
