//! Special tokens and chat templates, for the documents that contain them.

use formats::Gguf;
use serde_json::{Map, Value as Json, json};
use vocabulary::{Vocabulary, chat_templates};

/// Returns the fields of special token ids and their values.
pub(super) fn named_ids(vocabulary: &Vocabulary) -> impl Iterator<Item = (&'static str, u32)> {
    let Vocabulary { bos, eos, padding, .. } = vocabulary;
    let named = [("bos_token_id", *bos), ("eos_token_id", *eos), ("pad_token_id", *padding)];
    named.into_iter().filter_map(|(key, id)| Some((key, id?)))
}

/// Builds the `generation_config.json`.
pub(super) fn generation_config(vocabulary: Option<&Vocabulary>) -> Json {
    let Some(vocabulary) = vocabulary else { return Json::Object(Map::new()) };
    let mut config: Map<String, Json> = named_ids(vocabulary).map(|(key, id)| (key.to_owned(), id.into())).collect();
    let ends = &vocabulary.ends;
    if ends.len() > 1 || vocabulary.eos.is_none() && !ends.is_empty() {
        config.insert("eos_token_id".to_owned(), json!(ends));
    }
    Json::Object(config)
}

/// Builds the `special_tokens_map.json`.
pub(super) fn map(vocabulary: &Vocabulary) -> Json {
    let Vocabulary { bos, eos, padding, unknown, .. } = vocabulary;
    let named = [("bos_token", bos), ("eos_token", eos), ("pad_token", padding), ("unk_token", unknown)];
    let text = |id: u32| Some(Json::from(vocabulary.text(id)?));
    let entries = named.into_iter().filter_map(|(key, id)| Some((key.to_owned(), text((*id)?)?)));
    Json::Object(entries.collect())
}

/// Builds the `tokenizer_config.json`.
pub(super) fn tokenizer_config(gguf: &Gguf<'_>, vocabulary: &Vocabulary, context: u64) -> Json {
    let mut config = json!({
        "clean_up_tokenization_spaces": false,
        "model_max_length": context,
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    if let (Json::Object(config), Json::Object(texts)) = (&mut config, map(vocabulary)) {
        config.extend(texts);
        // If nothing is added, tokenizer.json has no template, so only this field can express that
        // BOS is not added.
        if !vocabulary.add_bos && !vocabulary.add_eos && vocabulary.usual_bos() {
            config.insert("add_bos_token".to_owned(), false.into());
        }
        if let Some(template) = templates(gguf) {
            config.insert("chat_template".to_owned(), template);
        }
    }
    config
}

/// Returns the chat template, or a list of named templates if there are several.
fn templates(gguf: &Gguf<'_>) -> Option<Json> {
    let found = chat_templates::of_gguf(gguf);
    if let [(name, text)] = &found[..]
        && name == chat_templates::DEFAULT
    {
        return Some(text.as_str().into());
    }
    let named = found.into_iter().map(|(name, template)| json!({"name": name, "template": template}));
    Some(named.collect::<Vec<Json>>()).filter(|list| !list.is_empty()).map(Json::from)
}
