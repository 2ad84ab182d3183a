//! `tokenizer.json`: the fields that all kinds of tokenizers share, around the model of each kind.

use std::collections::HashSet;

use import::Error;
use serde_json::{Map, Value as Json, json};
use vocabulary::{PieceKind, Vocabulary, VocabularyKind};

use super::{bpe, sentencepiece};

/// Builds a `tokenizer.json`; `None` if no tokenizer of the library splits text as the file
/// requires.
///
/// # Errors
/// The vocabulary contradicts itself.
pub(super) fn tokenizer(vocabulary: &Vocabulary, losses: &mut Vec<String>) -> Result<Option<Json>, Error> {
    let parts = match &vocabulary.kind {
        VocabularyKind::ByteLevel { pre_tokenizer, merges } => bpe::parts(pre_tokenizer, merges, losses)?,
        VocabularyKind::SentencePiece => Some(sentencepiece::parts(vocabulary, losses)),
        VocabularyKind::WordPiece { .. } | VocabularyKind::Unigram { .. } => {
            losses.push("there is no tokenizer.json: vocabularies of BERT and T5 are not written yet".to_owned());
            None
        }
        VocabularyKind::Other(name) => {
            losses.push(format!("there is no tokenizer.json: the tokenizer model `{name}` is not known"));
            None
        }
    };
    let Some(parts) = parts else { return Ok(None) };
    let mut model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
    });
    if let Json::Object(model) = &mut model {
        let merges = parts.model;
        model.insert("vocab".to_owned(), Json::Object(vocab(vocabulary, losses)));
        model.extend(merges);
    }
    Ok(Some(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(vocabulary),
        "decoder": parts.decoder,
        "model": model,
    })))
}

/// Returns token texts and ids. Tokens that only pad the vocabulary to the rows of the embedding
/// are omitted.
fn vocab(vocabulary: &Vocabulary, losses: &mut Vec<String>) -> Map<String, Json> {
    let mut vocab = Map::with_capacity(vocabulary.pieces.len());
    let mut twice = 0;
    for (id, token) in vocabulary.pieces.iter().enumerate() {
        if token.kind == PieceKind::Unused && token.text == format!("[PAD{id}]") {
            continue;
        }
        // Of tokens with the same text, the first one counts, as for readers of the file.
        if vocab.contains_key(&token.text) {
            twice += 1;
        } else {
            vocab.insert(token.text.clone(), id.into());
        }
    }
    if twice > 0 {
        losses.push(format!("{twice} tokens have the text of another and are left out of tokenizer.json"));
    }
    vocab
}

/// Returns the tokens that are matched in text before any other step.
fn added_tokens(vocabulary: &Vocabulary) -> Json {
    let mut seen = HashSet::new();
    let mut added = Vec::new();
    for (id, token) in vocabulary.pieces.iter().enumerate() {
        let special = matches!(token.kind, PieceKind::Control | PieceKind::Unknown);
        let found = (special || token.kind == PieceKind::UserDefined) && !token.text.is_empty();
        if found && seen.insert(token.text.as_str()) {
            added.push(json!({
                "id": id,
                "content": token.text,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            }));
        }
    }
    Json::Array(added)
}

/// Returns the step that puts BOS before and EOS after a text, if the file requires them.
fn post_processor(vocabulary: &Vocabulary) -> Json {
    let token = |id: Option<u32>, wanted: bool| {
        let id = id.filter(|_| wanted)?;
        Some((vocabulary.text(id)?, id))
    };
    let (bos, eos) = (token(vocabulary.bos, vocabulary.add_bos), token(vocabulary.eos, vocabulary.add_eos));
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let around = |sequence: &str, kind: u32| {
        let item = |(text, _): (&str, u32)| json!({"SpecialToken": {"id": text, "type_id": kind}});
        let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
        bos.map(item).into_iter().chain([text]).chain(eos.map(item)).collect::<Vec<Json>>()
    };
    let described = |(text, id): (&str, u32)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": Json::Object(bos.into_iter().chain(eos).map(described).collect()),
    })
}
