//! `vocab.json` and `merges.txt`: a byte-level BPE as in GPT-2, for folders that have no
//! `tokenizer.json`. Neither file states how text is split before merging; the tokenizer's class
//! implies it.

use std::collections::HashMap;

use serde_json::Value;

use crate::{Error, PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};

/// Tokenizer classes of transformers, and llama.cpp's names for their pre-tokenizers.
const SPLITS: [(&str, &str); 6] = [
    ("GPT2Tokenizer", "gpt-2"),
    ("Qwen2Tokenizer", "qwen2"),
    ("CodeGenTokenizer", "gpt-2"),
    ("GPTNeoXTokenizer", "gpt-2"),
    ("RobertaTokenizer", "roberta-bpe"),
    ("WhisperTokenizer", "gpt-2"),
];

impl Vocabulary {
    /// Reads both documents. `config` is the `tokenizer_config.json` of the same folder.
    ///
    /// # Errors
    /// A document is malformed, or the tokenizer's class is unknown.
    pub fn of_byte_pairs(vocab: &[u8], merges: &[u8], config: &Value) -> Result<Self, Error> {
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("GPT2Tokenizer");
        let class = class.strip_suffix("Fast").unwrap_or(class);
        let split = SPLITS.iter().find(|(own, _)| *own == class).map(|(_, split)| (*split).to_owned());
        let pre_tokenizer = split.ok_or_else(|| {
            Error(format!("how `{class}` splits text is not known without `tokenizer.json`; save the tokenizer with its fast class"))
        })?;
        let ids: HashMap<String, usize> =
            serde_json::from_slice(vocab).map_err(|error| Error(format!("`vocab.json`: {error}")))?;
        let count = ids.values().max().map_or(0, |most| most + 1);
        if count != ids.len() {
            return Err(Error(format!("`vocab.json` has {} tokens with numbers up to {count}", ids.len())));
        }
        let mut texts = vec![String::new(); count];
        for (text, id) in ids {
            texts[id] = text;
        }
        let pieces =
            texts.into_iter().map(|text| VocabularyEntry { text, score: 0.0, kind: PieceKind::Normal }).collect();
        let merges = std::str::from_utf8(merges).map_err(|_| Error("`merges.txt` is not text".to_owned()))?;
        let lines = merges.lines().map(|line| line.trim_end_matches('\r'));
        let merges =
            lines.filter(|line| !line.is_empty() && !line.starts_with("#version")).map(str::to_owned).collect();
        let mut vocabulary = Self::new(VocabularyKind::ByteLevel { pre_tokenizer, merges }, pieces);
        vocabulary.add_tokens(config);
        vocabulary.take_special(config);
        vocabulary.add_bos = config.get("add_bos_token").and_then(Value::as_bool).unwrap_or(false);
        Ok(vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_documents_make_a_vocabulary() {
        let config = json!({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|end|>",
            "added_tokens_decoder": {"3": {"content": "<|end|>", "special": true}}});
        let vocab = br#"{"a": 0, "b": 1, "ab": 2}"#;
        let vocabulary = Vocabulary::of_byte_pairs(vocab, b"#version: 0.2\r\na b\r\n", &config).expect("a vocabulary");
        let VocabularyKind::ByteLevel { pre_tokenizer, merges } = &vocabulary.kind else { panic!("{vocabulary:?}") };
        assert_eq!((pre_tokenizer.as_str(), merges.as_slice()), ("qwen2", &["a b".to_owned()][..]));
        assert_eq!(
            (vocabulary.eos, vocabulary.pieces[3].kind, vocabulary.add_bos),
            (Some(3), PieceKind::Control, false)
        );
        for (vocab, config, says) in [
            (&br#"{"a": 0, "b": 2}"#[..], json!({}), "numbers up to 3"),
            (br#"{"a": 0}"#, json!({"tokenizer_class": "XTokenizer"}), "`XTokenizer`"),
            (b"[]", json!({}), "`vocab.json`"),
        ] {
            let error = Vocabulary::of_byte_pairs(vocab, b"", &config).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
