//! Jina Embeddings v3: `XLM-RoBERTa` with `RoPE`. Its adapters for tasks are not applied.

use super::bert::token_types;
use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::dense::{layer_count, vocabulary};
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "jina_embeddings_v3",
    model_types: &["jina_embeddings_v3"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_qkv", "mixer.Wqkv"),
            ("attn_output", "mixer.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("layer_output_norm", "norm2"),
        ],
        model_names: &[
            ("token_embd.weight", "embeddings.word_embeddings.weight"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            ("token_embd_norm.weight", "emb_ln.weight"),
            ("token_embd_norm.bias", "emb_ln.bias"),
        ],
        ..GgufForm::not_yet("jina-bert-v3")
    },
    hugging_face: HuggingFaceForm::of("JinaEmbeddingsV3Model", "jina_embeddings_v3"),
};

fn names_of(root: &str, layers: &'static str) -> EncoderNames {
    EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
        embedding_norm: "emb_ln",
        layers,
        attention: AttentionNames::Together(["mixer.Wqkv", "mixer.out_proj"]),
        norms: ["norm1", "norm2"],
        network: NetworkNames::Plain(["mlp.fc1", "mlp.fc2"]),
    }
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("roberta.emb_ln.weight") { "roberta." } else { "" };
    let encoder = Encoder {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("hidden_size")?,
        heads: config.required("num_attention_heads")?,
        width: config.required("intermediate_size")?,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(8194),
        epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::Gelu)?,
        rope: Some(config.rope("full_attention", 20_000.0)?),
        positions: None,
        types: config.unsigned("type_vocab_size")?.unwrap_or(1),
        names: names_of(root, "encoder.layers."),
    };
    Ok(encoder.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let encoder = Encoder {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        width: keys.required("feed_forward_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        context: keys.required("context_length")?,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: Activation::Gelu,
        rope: Some(keys.rope()?),
        positions: None,
        types: token_types(keys),
        names: names_of("", "model.layers."),
    };
    Ok(encoder.blueprint(names))
}
