//! Special tokens, what is put around a text, and chat templates.

use serde_json::Value as Json;

use super::tokenizer::Vocabulary;
use super::tokenizer_json::{Around, TokenizerJson};
use crate::Error;
use crate::gguf::OwnedValue;

/// The documents that name special tokens; `null` where there is none.
pub(super) struct Documents<'a> {
    pub(super) config: Json,
    pub(super) tokenizer_config: Json,
    pub(super) generation_config: Json,
    pub(super) chat_template: Option<&'a [u8]>,
}

type Key = (String, OwnedValue);

/// The keys of special tokens and templates.
///
/// # Errors
/// A chat template that is not UTF-8.
pub(super) fn read(
    documents: &Documents<'_>,
    tokenizer: &TokenizerJson,
    vocabulary: &Vocabulary,
    losses: &mut Vec<String>,
) -> Result<Vec<Key>, Error> {
    let size = vocabulary.tokens.len() as u64;
    let mut keys = Vec::new();
    let mut id_key = |name: &str, id: Option<u64>| {
        if let Some(id) = id.filter(|id| *id < size) {
            keys.push((format!("tokenizer.ggml.{name}_token_id"), OwnedValue::from(id as u32)));
        }
    };
    let around = tokenizer.around();
    let bos = named_id(documents, tokenizer, "bos");
    let ends = ends(documents, named_id(documents, tokenizer, "eos"), vocabulary);
    let before = around.as_ref().and_then(|around| tokenizer.id(around.before.first()?));
    let bos = bos.or(before);
    id_key("bos", bos);
    for (name, id) in ["eos", "eot", "eom"].into_iter().zip(&ends) {
        id_key(name, Some(*id));
    }
    id_key("unknown", named_id(documents, tokenizer, "unk"));
    id_key("padding", named_id(documents, tokenizer, "pad"));
    if let Some(more) = ends.get(3..).filter(|more| !more.is_empty()) {
        losses.push(format!("generation also ends at the tokens {more:?}; GGUF has room for three that end"));
    }
    let (add_bos, add_eos) = match around {
        Some(around) => (!around.before.is_empty(), check_around(&around, tokenizer, bos, &ends, losses)),
        None => (flag(documents, "add_bos_token"), flag(documents, "add_eos_token")),
    };
    keys.push(("tokenizer.ggml.add_bos_token".to_owned(), add_bos.into()));
    keys.push(("tokenizer.ggml.add_eos_token".to_owned(), add_eos.into()));
    keys.extend(templates(documents)?);
    Ok(keys)
}

/// Whether the end of a text is marked. Says where readers will put other tokens around a text.
fn check_around(
    around: &Around,
    tokenizer: &TokenizerJson,
    bos: Option<u64>,
    ends: &[u64],
    losses: &mut Vec<String>,
) -> bool {
    let ids = |texts: &[String]| texts.iter().map(|text| tokenizer.id(text)).collect::<Vec<_>>();
    let expected = |texts: &[String], id: Option<u64>| texts.is_empty() || ids(texts) == [id];
    if !expected(&around.before, bos) || !expected(&around.after, ends.first().copied()) {
        let (before, after) = (around.before.join(""), around.after.join(""));
        losses
            .push(format!("the tokenizer puts `{before}` before and `{after}` after a text; GGUF can say BOS and EOS"));
    }
    !around.after.is_empty()
}

fn flag(documents: &Documents<'_>, key: &str) -> bool {
    documents.tokenizer_config.get(key).and_then(Json::as_bool).unwrap_or(false)
}

/// The number of `bos_token` and the like: as the tokenizer's config names it, else as the model's config does.
fn named_id(documents: &Documents<'_>, tokenizer: &TokenizerJson, name: &str) -> Option<u64> {
    let token = documents.tokenizer_config.get(format!("{name}_token"));
    let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let by_text = text.and_then(|text| tokenizer.id(text));
    let key = format!("{name}_token_id");
    by_text.or_else(|| documents.config.get(&key)?.as_u64())
}

/// The tokens that end a generation: the tokenizer's EOS, then those of the configs. The third is kept free for a token
/// that ends a message, where there is one.
fn ends(documents: &Documents<'_>, eos: Option<u64>, vocabulary: &Vocabulary) -> Vec<u64> {
    let listed = |config: &Json| match config.get("eos_token_id") {
        Some(Json::Array(ids)) => ids.iter().filter_map(Json::as_u64).collect(),
        Some(single) => single.as_u64().into_iter().collect::<Vec<u64>>(),
        None => Vec::new(),
    };
    let mut ends: Vec<u64> = eos.into_iter().collect();
    let configs = [&documents.generation_config, &documents.config];
    // A generation config that names ends counts alone, as in generation itself.
    for id in configs.into_iter().map(listed).find(|ids| !ids.is_empty()).unwrap_or_default() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    let is_message_end = |id: u64| vocabulary.tokens.get(id as usize).is_some_and(|text| text == "<|eom_id|>");
    if let [_, second, third, ..] = &mut ends[..]
        && is_message_end(*second)
    {
        std::mem::swap(second, third);
    }
    ends
}

/// The chat templates: one, or one by default and others by name.
fn templates(documents: &Documents<'_>) -> Result<Vec<Key>, Error> {
    let default = |text: &str| ("tokenizer.chat_template".to_owned(), OwnedValue::from(text));
    if let Some(raw) = documents.chat_template {
        let text = std::str::from_utf8(raw)
            .map_err(|_| Error::Config { source_name: "chat_template.jinja", reason: "it is not UTF-8".to_owned() })?;
        return Ok(vec![default(text)]);
    }
    let list = match documents.tokenizer_config.get("chat_template") {
        Some(Json::String(text)) => return Ok(vec![default(text)]),
        Some(Json::Array(list)) => list,
        _ => return Ok(Vec::new()),
    };
    let mut keys = Vec::new();
    let mut names = Vec::new();
    for entry in list {
        let text = |key: &str| entry.get(key).and_then(Json::as_str);
        match (text("name"), text("template")) {
            (Some("default"), Some(template)) => keys.push(default(template)),
            (Some(name), Some(template)) => {
                keys.push((format!("tokenizer.chat_template.{name}"), template.into()));
                names.push(name);
            }
            _ => {}
        }
    }
    if !names.is_empty() {
        keys.push(("tokenizer.chat_templates".to_owned(), OwnedValue::texts(names)));
    }
    Ok(keys)
}
