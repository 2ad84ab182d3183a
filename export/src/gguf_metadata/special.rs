//! Special tokens, tokens around a text, and chat templates.

use std::collections::HashSet;

use serde_json::Value as Json;
use vocabulary::chat_templates;

use super::token_list::Vocabulary;
use super::tokenizer_json::{Around, TokenizerJson};
use formats::gguf::OwnedValue;

/// Documents that name special tokens; `null` for a missing document.
pub(super) struct Documents<'a> {
    pub(super) config: Json,
    pub(super) tokenizer_config: Json,
    pub(super) generation_config: Json,
    pub(super) chat_templates: &'a [chat_templates::NamedTemplate],
}

type MetadataKey = (String, OwnedValue);

/// Returns the keys of special tokens and templates.
pub(super) fn read(
    documents: &Documents<'_>,
    tokenizer: &TokenizerJson,
    vocabulary: &Vocabulary,
    losses: &mut Vec<String>,
) -> Vec<MetadataKey> {
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
    let template = around.map(|around| by_template(&around, tokenizer, [bos, ends.first().copied()], losses));
    for (at, key) in ["add_bos_token", "add_eos_token"].into_iter().enumerate() {
        if let Some(add) = is_added(documents, key, template.map(|template| template[at]), losses) {
            keys.push((format!("tokenizer.ggml.{key}"), add.into()));
        }
    }
    keys.extend(templates(documents, losses));
    keys
}

/// Returns whether the template starts a text with BOS, and whether it ends the text with EOS. A
/// template with other tokens is reported as a loss.
fn by_template(
    around: &Around,
    tokenizer: &TokenizerJson,
    [bos, eos]: [Option<u64>; 2],
    losses: &mut Vec<String>,
) -> [bool; 2] {
    let ids = |texts: &[String]| texts.iter().map(|text| tokenizer.id(text)).collect::<Vec<_>>();
    let expected = |texts: &[String], id: Option<u64>| texts.is_empty() || (id.is_some() && ids(texts) == [id]);
    if !expected(&around.before, bos) || !expected(&around.after, eos) {
        let (before, after) = (around.before.join(""), around.after.join(""));
        losses
            .push(format!("the tokenizer puts `{before}` before and `{after}` after a text; GGUF can say BOS and EOS"));
    }
    let is = |text: Option<&String>, id: Option<u64>| id.is_some() && text.and_then(|text| tokenizer.id(text)) == id;
    [is(around.before.first(), bos), is(around.after.last(), eos)]
}

/// Returns whether readers are to add the token. The tokenizer's config takes precedence over the
/// template, as in gguf-py's `SpecialVocab`. Without both, readers use the default of the
/// tokenizer.
fn is_added(documents: &Documents<'_>, key: &str, template: Option<bool>, losses: &mut Vec<String>) -> Option<bool> {
    let flag = documents.tokenizer_config.get(key).and_then(Json::as_bool);
    if let (Some(flag), Some(template)) = (flag, template)
        && flag != template
    {
        losses.push(format!(
            "`{key}` is {flag} in tokenizer_config.json but {template} in tokenizer.json; the file gets {flag}"
        ));
    }
    flag.or(template)
}

/// Returns the id of `bos_token` and the like: from the tokenizer's config, else from the model's
/// config.
fn named_id(documents: &Documents<'_>, tokenizer: &TokenizerJson, name: &str) -> Option<u64> {
    let token = documents.tokenizer_config.get(format!("{name}_token"));
    let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let by_text = text.and_then(|text| tokenizer.id(text));
    let key = format!("{name}_token_id");
    by_text.or_else(|| documents.config.get(&key)?.as_u64())
}

/// Returns the tokens that end a generation: the tokenizer's EOS, then the tokens of the configs. A
/// token that ends a message, if there is one, goes to the third position.
fn ends(documents: &Documents<'_>, eos: Option<u64>, vocabulary: &Vocabulary) -> Vec<u64> {
    let listed = |config: &Json| match config.get("eos_token_id") {
        Some(Json::Array(ids)) => ids.iter().filter_map(Json::as_u64).collect(),
        Some(single) => single.as_u64().into_iter().collect::<Vec<u64>>(),
        None => Vec::new(),
    };
    let mut ends: Vec<u64> = eos.into_iter().collect();
    let configs = [&documents.generation_config, &documents.config];
    // If a generation config names end tokens, only those count, as in generation itself.
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

/// Returns the keys of the chat templates: the default one, and further templates by name.
fn templates(documents: &Documents<'_>, losses: &mut Vec<String>) -> Vec<MetadataKey> {
    let mut keys = Vec::new();
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    for (name, template) in documents.chat_templates {
        if !seen.insert(name) {
            losses.push(format!("there are several chat templates called `{name}`; the first one is kept"));
        } else if name == chat_templates::DEFAULT {
            keys.push(("tokenizer.chat_template".to_owned(), OwnedValue::from(template.as_str())));
        } else {
            keys.push((format!("tokenizer.chat_template.{name}"), template.as_str().into()));
            names.push(name.as_str());
        }
    }
    if !names.is_empty() {
        keys.push(("tokenizer.chat_templates".to_owned(), OwnedValue::texts(names)));
    }
    keys
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use vocabulary::PieceKind;

    use super::super::token_list::TokenizerModel;
    use super::*;

    /// Returns the keys and the losses.
    fn read_with(tokenizer_config: Json, single: &Json) -> (Vec<MetadataKey>, Vec<String>) {
        let chat_templates = chat_templates::of_config(&tokenizer_config);
        let documents = Documents {
            config: Json::Null,
            tokenizer_config,
            generation_config: Json::Null,
            chat_templates: &chat_templates,
        };
        let post_processor = json!({"type": "TemplateProcessing", "single": single});
        let root = json!({
            "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "<x>": 2}},
            "post_processor": if single.is_null() { Json::Null } else { post_processor },
        });
        let tokenizer = TokenizerJson::new(root).expect("a tokenizer");
        let vocabulary = Vocabulary {
            model: TokenizerModel::ByteLevel { pre: "default", merges: Vec::new() },
            tokens: ["<s>", "</s>", "<x>"].map(str::to_owned).to_vec(),
            types: vec![PieceKind::Control; 3],
        };
        let mut losses = Vec::new();
        let keys = read(&documents, &tokenizer, &vocabulary, &mut losses);
        (keys, losses)
    }

    fn added(keys: &[MetadataKey]) -> [Option<OwnedValue>; 2] {
        ["add_bos_token", "add_eos_token"].map(|wanted| {
            let found = keys.iter().find(|(key, _)| key.strip_prefix("tokenizer.ggml.") == Some(wanted));
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn flags_count_more_than_the_template() {
        let names = |more: Json| {
            let mut config = json!({"bos_token": "<s>", "eos_token": "</s>"});
            if let (Json::Object(config), Json::Object(more)) = (&mut config, more) {
                config.extend(more);
            }
            config
        };
        let token = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let (bos, other) = (json!([token("<s>"), text]), json!([token("<x>"), text]));
        let [yes, no] = [true, false].map(|flag| Some(OwnedValue::from(flag)));
        for (flags, single, expected, lost) in [
            (json!({}), Json::Null, [None, None], 0),
            (json!({}), bos.clone(), [yes.clone(), no.clone()], 0),
            (json!({"add_bos_token": true}), Json::Null, [yes.clone(), None], 0),
            (json!({"add_bos_token": false, "add_eos_token": true}), bos, [no.clone(), yes], 2),
            // The token before the text is not BOS, which is a loss.
            (json!({}), other, [no.clone(), no], 1),
        ] {
            let (keys, losses) = read_with(names(flags.clone()), &single);
            assert_eq!(added(&keys), expected, "{flags} {single}");
            assert_eq!(losses.len(), lost, "{flags} {single}: {losses:?}");
        }
    }

    #[test]
    fn the_first_template_of_a_name_is_kept() {
        let template = |name: &str, template: &str| json!({"name": name, "template": template});
        let list = [template("default", "a"), template("tool", "b"), template("default", "c"), template("tool", "d")];
        let (keys, losses) = read_with(json!({"chat_template": list}), &Json::Null);
        let templates: Vec<&MetadataKey> = keys.iter().filter(|(key, _)| key.contains("chat_template")).collect();
        let expected = [
            ("tokenizer.chat_template".to_owned(), OwnedValue::from("a")),
            ("tokenizer.chat_template.tool".to_owned(), OwnedValue::from("b")),
            ("tokenizer.chat_templates".to_owned(), OwnedValue::texts(["tool"])),
        ];
        assert_eq!(templates, expected.iter().collect::<Vec<_>>());
        assert_eq!(losses.len(), 2, "{losses:?}");
    }
}
