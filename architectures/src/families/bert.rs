//! BERT and `RoBERTa`, encoders that embed texts. In `RoBERTa`, positions start at an offset.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::{Config, fail};
use crate::dense::{layer_count, vocabulary};
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames, TYPES, token_types};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bert",
    model_types: &["bert", "electra"],
    read_config,
    gguf: &GGUF,
    hugging_face: HuggingFaceForm::of("BertModel", "bert"),
};

/// GGUF form of all BERT-like models.
pub(super) const GGUF: GgufForm = GgufForm {
    read: Some(read_gguf),
    names: &[
        ("attn_q", "attention.self.query"),
        ("attn_k", "attention.self.key"),
        ("attn_v", "attention.self.value"),
        ("attn_output", "attention.output.dense"),
        ("attn_output_norm", "attention.output.LayerNorm"),
        ("ffn_up", "intermediate.dense"),
        ("ffn_down", "output.dense"),
        ("layer_output_norm", "output.LayerNorm"),
    ],
    model_names: &[
        ("token_embd.weight", "embeddings.word_embeddings.weight"),
        ("position_embd.weight", "embeddings.position_embeddings.weight"),
        ("token_types.weight", "embeddings.token_type_embeddings.weight"),
        ("token_embd_norm.weight", "embeddings.LayerNorm.weight"),
        ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
    ],
    ..GgufForm::not_yet("bert")
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let hidden = config.required("hidden_size")?;
    if config.unsigned("embedding_size")?.is_some_and(|size| size != hidden) {
        return Err(fail("`embedding_size` is not `hidden_size`: projected embeddings cannot be run yet"));
    }
    let prefix = if config.text("model_type") == Some("electra") { "electra." } else { "bert." };
    read(config, names, prefix, 0)
}

/// Names in folders and, for layers, in GGUF files.
fn encoder_names(root: &str, layers: &'static str) -> EncoderNames {
    EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings"],
        embedding_norm: "embeddings.LayerNorm",
        layers,
        attention: AttentionNames::Separate([
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ]),
        norms: ["attention.output.LayerNorm", "output.LayerNorm"],
        network: NetworkNames::Plain(["intermediate.dense", "output.dense"]),
    }
}

/// Reads a config. `offset` is the row of the first position; tensor names may start with `prefix`.
pub(super) fn read(config: Config<'_>, names: &TensorNames, prefix: &str, offset: u64) -> Result<Blueprint, Error> {
    if let Some(other) = config.text("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(fail(format!("`position_embedding_type` is `{other}`, expected absolute")));
    }
    let prefix = if names.has(&format!("{prefix}embeddings.word_embeddings.weight")) { prefix } else { "" };
    let encoder = Encoder::with_positions(config, offset, TYPES, encoder_names(prefix, "encoder.layer."))?;
    Ok(encoder.blueprint(names))
}

/// Reads GGUF metadata. A file stores position rows from the first used one on, so the offset is 0.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let context = keys.required("context_length")?;
    let encoder = Encoder {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        width: keys.required("feed_forward_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        context,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-12),
        activation: Activation::Gelu,
        rope: None,
        positions: Some((context, 0)),
        types: token_types(keys),
        names: encoder_names("", "model.layers."),
    };
    Ok(encoder.blueprint(names))
}
