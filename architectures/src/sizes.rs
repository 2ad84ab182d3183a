//! Sizes of models that no family supports: enough to show the models and to plan for them.

use serde_json::{Map, Value as Json};

use crate::Document;

/// GGUF's keys and the corresponding keys of configs.
const SIZES: [(&str, &[&str]); 8] = [
    ("block_count", &["num_hidden_layers", "n_layer", "n_layers", "num_layers"]),
    ("context_length", &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"]),
    ("embedding_length", &["hidden_size", "n_embd", "d_model"]),
    ("feed_forward_length", &["intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"]),
    ("attention.head_count", &["num_attention_heads", "n_head", "n_heads"]),
    ("attention.head_count_kv", &["num_key_value_heads", "num_kv_heads"]),
    ("attention.key_length", &["head_dim"]),
    ("vocab_size", &["vocab_size"]),
];

/// Largest number of characters of a name that are kept.
const NAME: usize = 60;

/// Name and sizes from a source of any architecture, under GGUF's keys without the prefix of the
/// architecture's name. The values are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Name in the source; empty if it has none.
    pub architecture: String,
    /// Keys and their values.
    pub numbers: Vec<(&'static str, u64)>,
}

impl Sizes {
    /// Reads name and sizes from a source.
    pub fn of(document: Document<'_>) -> Self {
        match document {
            Document::Gguf(gguf) => {
                let architecture: String =
                    gguf.text("general.architecture").unwrap_or_default().chars().take(NAME).collect();
                let number = |key: &str| gguf.unsigned(&format!("{architecture}.{key}"));
                let numbers = SIZES.iter().filter_map(|(key, _)| Some((*key, number(key)?))).collect();
                Self { architecture, numbers }
            }
            Document::Config(raw) => {
                let whole: Map<String, Json> =
                    serde_json::from_slice(&formats::json::tolerant(raw)).unwrap_or_default();
                // Text part of a multimodal model.
                let text = whole.get("text_config").and_then(Json::as_object).unwrap_or(&whole);
                let named = |names: &[&str]| names.iter().find_map(|name| text.get(*name)?.as_u64());
                let numbers = SIZES.iter().filter_map(|(key, names)| Some((*key, named(names)?))).collect();
                let name = whole.get("model_type").and_then(Json::as_str).unwrap_or_default();
                let architecture = name.chars().take(NAME).collect();
                Self { architecture, numbers }
            }
        }
    }
}
