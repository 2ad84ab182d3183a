//! GTE v1.5 and Snowflake Arctic Embed 2: a BERT with `RoPE` and gated networks.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::dense::layer_count;
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gte",
    model_types: &["gte", "new"],
    read_config,
    gguf: &GgufForm::not_yet("gte"),
    hugging_face: HuggingFaceForm::of("GteModel", "gte"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("new.embeddings.word_embeddings.weight") { "new." } else { "" };
    let encoder = Encoder {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("hidden_size")?,
        heads: config.required("num_attention_heads")?,
        width: config.required("intermediate_size")?,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(8192),
        epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-12),
        activation: config.activation("hidden_act", Activation::Gelu)?,
        rope: Some(config.rope("full_attention", 160_000.0)?),
        positions: None,
        types: config.unsigned("type_vocab_size")?.unwrap_or(0),
        names: EncoderNames {
            root: root.to_owned(),
            tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
            embedding_norm: "embeddings.LayerNorm",
            layers: "encoder.layer.",
            attention: AttentionNames::Together(["attention.qkv_proj", "attention.o_proj"]),
            norms: ["attn_ln", "mlp_ln"],
            network: NetworkNames::Together(["mlp.up_gate_proj", "mlp.down_proj"]),
        },
    };
    Ok(encoder.blueprint(names))
}
