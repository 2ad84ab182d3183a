//! BPE over a token table, equivalent to that of the `tokenizers` library.
//!
//! Source of the algorithm: `models/bpe` of `tokenizers`. It starts with single characters. As long
//! as two adjacent symbols have a merge, it applies the merge of the lowest rank, leftmost first. A
//! character without a token becomes its bytes, or the unknown token, or nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Deserializer};
use tokenizers::{Result, Token};
use vocabulary::TokenTable;

/// Options of the model besides the table; the fields of a `tokenizer.json`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Rules {
    /// Token for characters without a token.
    pub(super) unk_token: Option<String>,
    /// Whether a run of such characters becomes one token.
    #[serde(default, deserialize_with = "or_false")]
    pub(super) fuse_unk: bool,
    /// Whether characters without a token become tokens `<0xXX>`.
    #[serde(default, deserialize_with = "or_false")]
    pub(super) byte_fallback: bool,
    /// Whether a word that is a token becomes this token, regardless of merges.
    #[serde(default, deserialize_with = "or_false")]
    pub(super) ignore_merges: bool,
}

/// Deserializes a missing value and `null` as false, like the library.
fn or_false<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// BPE model over a table.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    table: TokenTable,
    rules: Rules,
    /// The tokens of single bytes; empty without byte fallback.
    bytes: Vec<Option<u32>>,
}

/// A symbol: a part of a word that is a token. Its length is 0 after it was merged into the
/// previous symbol.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    /// Length in bytes.
    length: usize,
    before: Option<usize>,
    after: Option<usize>,
}

impl Bpe {
    pub(super) fn new(table: TokenTable, rules: Rules) -> Self {
        let byte = |byte: u8| table.id(&format!("<0x{byte:02X}>"));
        let bytes = if rules.byte_fallback { (0..=u8::MAX).map(byte).collect() } else { Vec::new() };
        Self { table, rules, bytes }
    }

    /// Splits a word into the tokens of single characters.
    fn characters(&self, word: &str) -> Result<Vec<Symbol>> {
        let mut symbols = Vec::with_capacity(word.len());
        let mut add = |id, length| symbols.push(Symbol { id, length, before: None, after: None });
        // An unknown token is held back until the next known character or the end, as in the
        // library; tokens of bytes are added before it.
        let mut unknown: Option<(u32, usize)> = None;
        let mut buffer = [0; 4];
        for c in word.chars() {
            let text = &*c.encode_utf8(&mut buffer);
            if let Some(id) = self.table.id(text) {
                if let Some((id, length)) = unknown.take() {
                    add(id, length);
                }
                add(id, text.len());
            } else if let Some(bytes) = self.bytes_of(text) {
                for id in bytes {
                    add(id, 1);
                }
            } else if let Some(name) = &self.rules.unk_token {
                let id = self.table.id(name);
                let id = id.ok_or_else(|| format!("the unknown token `{name}` is not in the vocabulary"))?;
                unknown = Some(match unknown {
                    Some((id, length)) if self.rules.fuse_unk => (id, length + text.len()),
                    Some((id, length)) => {
                        add(id, length);
                        (id, text.len())
                    }
                    None => (id, text.len()),
                });
            }
        }
        if let Some((id, length)) = unknown {
            add(id, length);
        }
        Ok(symbols)
    }

    /// Returns the tokens of a character's bytes, if all have one.
    fn bytes_of(&self, text: &str) -> Option<Vec<u32>> {
        text.bytes().map(|byte| self.bytes.get(usize::from(byte)).copied().flatten()).collect()
    }

    fn merge(&self, symbols: &mut [Symbol]) {
        let count = symbols.len();
        for (position, symbol) in symbols.iter_mut().enumerate() {
            symbol.before = position.checked_sub(1);
            symbol.after = Some(position + 1).filter(|after| *after < count);
        }
        let mut queue = BinaryHeap::new();
        for left in 1..count {
            self.propose(symbols, left - 1, &mut queue);
        }
        while let Some(Reverse((_, left, id))) = queue.pop() {
            // Either symbol can have been merged in the meantime.
            let Symbol { id: own, length, after: Some(right), .. } = symbols[left] else { continue };
            let merge = self.table.merge(own, symbols[right].id);
            if length == 0 || merge.is_none_or(|merge| merge.id != id) {
                continue;
            }
            let Symbol { length: more, after, .. } = symbols[right];
            symbols[left] = Symbol { id, length: length + more, after, ..symbols[left] };
            symbols[right].length = 0;
            if let Some(after) = after {
                symbols[after].before = Some(left);
            }
            if let Some(before) = symbols[left].before {
                self.propose(symbols, before, &mut queue);
            }
            self.propose(symbols, left, &mut queue);
        }
    }

    /// Queues the merge of a symbol with the next one, if there is one.
    fn propose(&self, symbols: &[Symbol], left: usize, queue: &mut BinaryHeap<Reverse<(u32, usize, u32)>>) {
        let Some(right) = symbols[left].after else { return };
        if let Some(merge) = self.table.merge(symbols[left].id, symbols[right].id) {
            queue.push(Reverse((merge.rank, left, merge.id)));
        }
    }

    fn token(&self, id: u32, start: usize, length: usize) -> Token {
        let text = self.table.get(id).map_or("", |token| token.text);
        Token::new(id, text.to_owned(), (start, start + length))
    }

    /// Tokenizes a word.
    pub(super) fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        if self.rules.ignore_merges
            && let Some(id) = self.table.id(word).filter(|_| !word.is_empty())
        {
            return Ok(vec![self.token(id, 0, word.len())]);
        }
        let mut symbols = self.characters(word)?;
        self.merge(&mut symbols);
        let mut start = 0;
        let mut token = |symbol: &Symbol| {
            let token = self.token(symbol.id, start, symbol.length);
            start += symbol.length;
            token
        };
        Ok(symbols.iter().filter(|symbol| symbol.length > 0).map(&mut token).collect())
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.table.id(text)
    }

    pub(super) fn text(&self, id: u32) -> Option<String> {
        self.table.get(id).map(|token| token.text.to_owned())
    }

    /// Returns all texts with their ids.
    pub(super) fn vocabulary(&self) -> HashMap<String, u32> {
        self.table.ids().filter_map(|id| Some((self.text(id)?, id))).collect()
    }

    /// Returns the number of distinct texts.
    pub(super) fn size(&self) -> usize {
        self.table.texts()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::bpe::BPE;

    use super::*;
    use crate::tokenizer::library::{AnyModel, read};
    use crate::tokenizer::{Special, Tokenizer};

    /// Creates a library model with some of the letters, the given pairs, and some bytes.
    fn document(letters: &[usize], pairs: &[(usize, usize)], switches: [bool; 4], bytes: usize) -> serde_json::Value {
        let [fuse_unk, byte_fallback, ignore_merges, has_unknown] = switches;
        let mut texts: Vec<String> =
            letters.iter().map(|at| "abcdé🙂".chars().nth(*at).expect("a letter").into()).collect();
        texts.push("<unk>".to_owned());
        texts.sort_unstable();
        texts.dedup();
        // All bytes except the last few.
        texts.extend((0..=255).take(bytes).map(|byte| format!("<0x{byte:02X}>")));
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (texts[left % texts.len()].clone(), texts[right % texts.len()].clone());
            let both = format!("{left}{right}");
            if !texts.contains(&both) {
                texts.push(both);
            }
            merges.push([left, right]);
        }
        let vocab: serde_json::Map<_, _> = texts.into_iter().zip((0..).map(|id: u32| id.into())).collect();
        let unknown = has_unknown.then_some("<unk>");
        serde_json::json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "fuse_unk": fuse_unk, "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges
        })
    }

    fn table(model: &serde_json::Value) -> TokenTable {
        let document = serde_json::json!({"version": "1.0", "model": model}).to_string();
        let table = TokenTable::of_tokenizer_json(document.as_bytes()).expect("it is read").expect("plain BPE");
        TokenTable::open(Arc::new(table)).expect("a table")
    }

    proptest! {
        #[test]
        fn cuts_as_the_library_does(
            letters in prop::collection::vec(0..6usize, 1..6),
            pairs in prop::collection::vec((0..40usize, 0..40usize), 0..12),
            switches in any::<[bool; 4]>(),
            bytes in prop_oneof![Just(0usize), Just(200), Just(256)],
            word in "[abcdé🙂x]{0,12}",
        ) {
            let model = document(&letters, &pairs, switches, bytes);
            let library: BPE = serde_json::from_str(&model.to_string()).expect("a model");
            let own = Bpe::new(table(&model), serde_json::from_value(model.clone()).expect("rules"));
            let expect = library.tokenize(&word).expect("tokens");
            prop_assert_eq!(own.tokenize(&word).expect("tokens"), expect, "{}", model);
            prop_assert_eq!(own.vocabulary(), library.get_vocab());
            prop_assert_eq!(own.size(), library.get_vocab_size());
        }
    }

    /// Added tokens have the ids of the vocabulary or follow it; missing options are false.
    #[test]
    fn documents_are_read_as_the_library_reads_them() {
        let added = |text: &str| {
            serde_json::json!({
                "id": 0, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true
            })
        };
        let mut model = document(&[0, 1], &[(0, 1)], [false; 4], 0);
        for switch in [serde_json::Value::Null, false.into()] {
            for name in ["fuse_unk", "byte_fallback", "ignore_merges"] {
                model[name] = switch.clone();
            }
            let cut =
                serde_json::json!({"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
            let document = serde_json::json!({
                "version": "1.0", "truncation": cut, "added_tokens": [added("<new>"), added("a"), added("<other>")],
                "model": model
            });
            let raw = document.to_string();
            let (own, library) = (Tokenizer::from_json(raw.as_bytes()), read(raw.as_bytes()).expect("the library's"));
            let own = own.expect("a tokenizer");
            assert!(matches!(library.get_model(), AnyModel::Library(_)));
            assert_eq!(own.size(), library.get_vocab_size(true));
            for text in ["<new>", "a", "<other>", "b", "ab", "c"] {
                assert_eq!(own.id(text), library.token_to_id(text), "{text}");
            }
            let text = "ab<other>bab<new>";
            let ids = own.encode(text, Special { add: true, parse: true }).expect("tokens");
            assert_eq!(ids, library.encode_fast(text, true).expect("tokens").get_ids());
            assert!(ids.len() > 4, "nothing is cut off: {ids:?}");
        }
        let newer = serde_json::json!({"version": "2.0", "model": model}).to_string();
        let error = Tokenizer::from_json(newer.as_bytes()).expect_err("newer").to_string();
        assert!(error.contains("`2.0`, expected 1.0"), "{error}");
    }
}
