//! Special tokens and chat templates, for the documents that name them.

use serde_json::{Map, Value as Json, json};

use super::vocabulary::{ENDS, Kind, Model, Vocabulary};
use crate::gguf::{Gguf, Value, pre_tokenizer};

/// The special tokens of a file, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Special {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// A text begins with [`bos`](Self::bos).
    pub(super) add_bos: bool,
    /// [`add_bos`](Self::add_bos) is what readers of a file take where it does not say.
    usual_bos: bool,
    /// A text ends with [`eos`](Self::eos).
    pub(super) add_eos: bool,
    /// What ends a generation, EOS first.
    ends: Vec<u32>,
}

impl Special {
    pub(super) fn read(gguf: &Gguf<'_>, vocabulary: Option<&Vocabulary<'_>>) -> Self {
        let Some(vocabulary) = vocabulary else { return Self::default() };
        let size = vocabulary.tokens.len() as u64;
        let id = |key: &str| {
            let id = gguf.unsigned(&format!("tokenizer.ggml.{key}_token_id")).filter(|id| *id < size);
            id.map(|id| id as u32).or_else(|| default_id(vocabulary, key))
        };
        let flag = |key: &str| gguf.flag(&format!("tokenizer.ggml.{key}"));
        let with_bos = match &vocabulary.model {
            Model::SentencePiece { .. } => true,
            Model::ByteLevel { pre, .. } => pre_tokenizer::by_name(pre).is_some_and(|entry| entry.with_bos),
            Model::Other(_) => false,
        };
        // Readers stop at these too.
        let by_text = (0..)
            .zip(&vocabulary.tokens)
            .filter_map(|(id, token)| (token.kind == Kind::Control && ENDS.contains(&token.text)).then_some(id));
        let mut ends: Vec<u32> = Vec::new();
        for id in ["eos", "eot", "eom"].into_iter().filter_map(id).chain(by_text) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        let add_bos = flag("add_bos_token").unwrap_or(with_bos);
        Self {
            bos: id("bos"),
            eos: id("eos"),
            padding: id("padding"),
            unknown: id("unknown"),
            add_bos,
            usual_bos: add_bos == with_bos,
            add_eos: flag("add_eos_token").unwrap_or(false),
            ends,
        }
    }

    /// Names of fields and numbers.
    pub(super) fn named_ids(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let named = [("bos_token_id", self.bos), ("eos_token_id", self.eos), ("pad_token_id", self.padding)];
        named.into_iter().filter_map(|(key, id)| Some((key, id?)))
    }

    /// `generation_config.json`.
    pub(super) fn generation_config(&self) -> Json {
        let mut config: Map<String, Json> = self.named_ids().map(|(key, id)| (key.to_owned(), id.into())).collect();
        if self.ends.len() > 1 || self.eos.is_none() && !self.ends.is_empty() {
            config.insert("eos_token_id".to_owned(), json!(self.ends));
        }
        Json::Object(config)
    }

    /// `special_tokens_map.json`.
    pub(super) fn map(&self, vocabulary: &Vocabulary<'_>) -> Json {
        let named = [("bos_token", self.bos), ("eos_token", self.eos), ("pad_token", self.padding)];
        let named = named.into_iter().chain([("unk_token", self.unknown)]);
        let text = |id: u32| Some(Json::from(vocabulary.tokens.get(id as usize)?.text));
        let entries = named.filter_map(|(key, id)| Some((key.to_owned(), text(id?)?)));
        Json::Object(entries.collect())
    }

    /// `tokenizer_config.json`.
    pub(super) fn tokenizer_config(&self, gguf: &Gguf<'_>, vocabulary: &Vocabulary<'_>, context: u64) -> Json {
        let mut config = json!({
            "clean_up_tokenization_spaces": false,
            "model_max_length": context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        if let (Json::Object(config), Json::Object(texts)) = (&mut config, self.map(vocabulary)) {
            config.extend(texts);
            // A tokenizer.json that adds nothing has no template, and so no word about it.
            if !self.add_bos && !self.add_eos && !self.usual_bos {
                config.insert("add_bos_token".to_owned(), false.into());
            }
            if let Some(template) = templates(gguf) {
                config.insert("chat_template".to_owned(), template);
            }
        }
        config
    }
}

/// What readers take where the file names no such token; the numbers are llama.cpp's (`llama-vocab.cpp`).
fn default_id(vocabulary: &Vocabulary<'_>, key: &str) -> Option<u32> {
    let id = match (&vocabulary.model, key) {
        (Model::SentencePiece { .. }, "bos") => 1,
        (Model::SentencePiece { .. }, "eos") => 2,
        (Model::SentencePiece { .. }, "unknown") => 0,
        (Model::ByteLevel { .. }, "bos" | "eos") => 11,
        _ => return None,
    };
    let token = vocabulary.tokens.get(id as usize)?;
    // The number for byte-level BPE is that of one model family; for others it is some text, a comma for instance, which
    // tokenizers would no longer give back were it called special.
    let text = matches!(vocabulary.model, Model::ByteLevel { .. }) && token.kind != Kind::Control;
    (!text).then_some(id)
}

/// One template, or a list of named ones.
fn templates(gguf: &Gguf<'_>) -> Option<Json> {
    let default = gguf.text("tokenizer.chat_template");
    let names: Vec<Value<'_>> =
        gguf.array("tokenizer.chat_templates").map_or_else(Vec::new, |names| names.iter().collect());
    let named: Vec<Json> = names
        .iter()
        .filter_map(|name| {
            let name = name.as_str()?;
            let template = gguf.text(&format!("tokenizer.chat_template.{name}"))?;
            Some(json!({"name": name, "template": template}))
        })
        .collect();
    if named.is_empty() {
        return default.map(Json::from);
    }
    let default = default.map(|template| json!({"name": "default", "template": template}));
    Some(default.into_iter().chain(named).collect())
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::Token;
    use super::*;

    #[test]
    fn tokens_without_a_key_have_the_usual_numbers() {
        let token = |kind| Token { text: "", kind, score: 0.0 };
        let pieces = Vocabulary {
            model: Model::SentencePiece { add_space_prefix: true },
            tokens: vec![token(Kind::Unknown), token(Kind::Control)],
        };
        let keys = ["bos", "eos", "unknown", "padding"];
        assert_eq!(keys.map(|key| default_id(&pieces, key)), [Some(1), None, Some(0), None], "there are two tokens");
        let bytes = |kind| Vocabulary {
            model: Model::ByteLevel { pre: "falcon", merges: Vec::new() },
            tokens: vec![token(kind); 12],
        };
        assert_eq!(keys.map(|key| default_id(&bytes(Kind::Control), key)), [Some(11), Some(11), None, None]);
        assert_eq!(keys.map(|key| default_id(&bytes(Kind::Normal), key)), [None; 4], "it is text");
    }
}
