//! Tests with tables of small vocabularies and with damaged tables.

use std::sync::Arc;

use super::*;
use crate::{VocabularyEntry, VocabularyKind};

fn open(bytes: Vec<u8>) -> Result<TokenTable, Error> {
    TokenTable::open(Arc::new(bytes))
}

fn bpe(texts: &[&str], merges: &[&str]) -> Result<Vec<u8>, Error> {
    let piece = |text: &&str| VocabularyEntry { text: (*text).to_owned(), score: 0.5, kind: PieceKind::Normal };
    let merges = merges.iter().map(|merge| (*merge).to_owned()).collect();
    let kind = VocabularyKind::ByteLevel { pre_tokenizer: "gpt-2".to_owned(), merges };
    TokenTable::of_vocabulary(Vocabulary::new(kind, texts.iter().map(piece).collect()))
}

#[test]
fn every_token_and_merge_is_found() {
    let texts: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).chain(["", "é", "1"]).collect();
    let merges: Vec<String> = (10..1000).map(|n| format!("{} {}", n / 10, n % 10)).collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    let table = open(bpe(&texts, &merges).expect("a table")).expect("it is one");
    assert_eq!((table.len(), table.texts()), (1003, 1002), "`1` is there twice");
    for (id, text) in (0..).zip(&texts) {
        assert_eq!(table.get(id).map(|token| token.text), Some(*text));
        assert_eq!(table.id(text), Some(if *text == "1" { 1002 } else { id }), "{text}");
    }
    for (left, right) in (0..=100).flat_map(|left| (0..10).map(move |right| (left, right))) {
        let id = |n: u32| if n == 1 { 1002 } else { n };
        let both = left * 10 + right;
        let expect = (10..1000).contains(&both).then(|| Merge { rank: both - 10, id: both });
        assert_eq!(table.merge(id(left), id(right)), expect, "{left} {right}");
    }
    for absent in ["x", "1000", "01"] {
        assert_eq!(table.id(absent), None, "{absent}");
    }
    assert_eq!((table.get(1003), table.kind(u32::MAX)), (None, None));
    assert!(matches!(table.settings().expect("settings"), Settings::Gguf(own) if own.pieces.is_empty()));
}

#[test]
fn scores_and_kinds_are_kept_where_a_vocabulary_has_them() {
    let piece = |text: &str, score, kind| VocabularyEntry { text: text.to_owned(), score, kind };
    let pieces = vec![
        piece("a", -1.5, PieceKind::Control),
        piece("b", 2.0, PieceKind::Byte),
        piece("a", 0.0, PieceKind::Unused),
    ];
    let vocabulary = Vocabulary { bos: Some(1), ..Vocabulary::new(VocabularyKind::SentencePiece, pieces.clone()) };
    let table = open(TokenTable::of_vocabulary(vocabulary).expect("a table")).expect("it is one");
    for (id, own) in (0..).zip(&pieces) {
        let expect = Token { text: &own.text, score: own.score, kind: own.kind };
        assert_eq!((table.get(id), table.kind(id)), (Some(expect), Some(own.kind)));
    }
    assert_eq!(table.id("a"), Some(0), "the first counts");
    let Settings::Gguf(settings) = table.settings().expect("settings") else { panic!("of a GGUF file") };
    assert_eq!((settings.bos, settings.kind), (Some(1), VocabularyKind::SentencePiece));
}

#[test]
fn merges_of_unknown_texts_are_refused() {
    for (merge, expect) in [
        ("a", "`a` is not a pair"),
        ("a ", "`a ` is not a pair"),
        ("a x", "`x`, which is not in the vocabulary"),
        ("b a", "`ba`, which is not in the vocabulary"),
    ] {
        let error = bpe(&["a", "b", "ab"], &[merge]).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn only_plain_bpe_of_a_tokenizer_json_becomes_a_table() {
    let document = |model: &str| format!(r#"{{"version": "1.0", "added_tokens": [], "model": {model}}}"#);
    let table = |model: &str| TokenTable::of_tokenizer_json(document(model).as_bytes());
    let bpe = r#""type": "BPE", "vocab": {"a": 0, "b": 3, "ab": 2}"#;
    for merges in [r#"["a b"]"#, r#"[["a", "b"]]"#, r##"["#version: 0.2", "a b"]"##] {
        assert!(is_plain_bpe(document(&format!("{{{bpe}}}")).as_bytes()));
        let bytes = table(&format!(r#"{{{bpe}, "dropout": null, "merges": {merges}}}"#)).expect(merges);
        let table = open(bytes.expect("it is plain")).expect("a table");
        assert_eq!((table.len(), table.texts(), table.get(1)), (4, 3, None), "no token has the id 1");
        assert_eq!(table.merge(0, 3), Some(Merge { rank: 0, id: 2 }));
        let Settings::TokenizerJson(settings) = table.settings().expect("settings") else { panic!("of a document") };
        assert!(settings.get().contains("added_tokens") && !settings.get().contains("vocab"), "{settings}");
    }
    for other in [
        r#"{"type": "WordPiece", "vocab": {"a": 0}}"#.to_owned(),
        format!(r#"{{{bpe}, "merges": [], "dropout": 0.1}}"#),
        format!(r#"{{{bpe}, "merges": [], "end_of_word_suffix": "</w>"}}"#),
        r#"{"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}"#.to_owned(),
        r#"{"type": "BPE", "vocab": {}, "merges": []}"#.to_owned(),
        r#"{"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}"#.to_owned(),
        "3".to_owned(),
    ] {
        assert_eq!(table(&other).expect(&other), None, "{other}");
    }
    assert!(!is_plain_bpe(document(r#"{"type": "WordPiece", "vocab": {"a": 0}}"#).as_bytes()) && !is_plain_bpe(b"["));
    for wrong in [format!(r#"{{{bpe}, "merges": ["a"]}}"#), format!(r#"{{{bpe}, "merges": 3}}"#)] {
        table(&wrong).expect_err(&wrong);
    }
}

#[test]
fn damaged_tables_are_refused_or_harmless() {
    let whole = bpe(&["a", "b", "ab"], &["a b"]).expect("a table");
    let version = [&whole[..8], b"0123456789abcdef", &whole[24..]].concat();
    assert!(open(version).expect_err("of another build").to_string().contains("another build"));
    for length in 0..whole.len() {
        open(whole[..length].to_vec()).map(|_| ()).expect_err("cut off");
        assert!(!TokenTable::is_whole(&whole[..length]).expect("memory"), "{length}");
    }
    assert!(TokenTable::is_whole(&whole[..]).expect("memory"));
    assert!(!TokenTable::is_whole(&[&whole[..], &[0]].concat()[..]).expect("memory"), "there is more");
    for at in 0..whole.len() {
        for bit in [1, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            assert!(!TokenTable::is_whole(&bytes[..]).expect("memory"), "byte {at}");
            let Ok(table) = open(bytes) else { continue };
            let _ = table.settings();
            for id in table.ids().take(9) {
                let _ = (table.get(id), table.length(id), table.merge(id, 1), table.merge(0, id));
            }
            let _ = ["a", "b", "ab", "x"].map(|text| table.id(text));
        }
    }
}
