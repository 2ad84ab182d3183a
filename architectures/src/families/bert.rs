//! BERT and `RoBERTa`, encoders that embed texts. In `RoBERTa`, positions start at an offset.

use crate::blueprint::{
    Activation, Blueprint, Embedding, Ffn, Layer, Mixer, Plain, Positions, Residual, Tensor, TokenTypes,
};
use crate::config_json::{Config, fail};
use crate::dense::{attention, layer_count, layer_norm, projection, vocabulary};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bert",
    model_types: &["bert"],
    read_config: |config, names| read(config, names, "bert.", 0),
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

/// Default number of token types, as in transformers.
const TYPES: u64 = 2;

/// Parameters of a BERT-like encoder. Sizes are in elements.
struct EncoderSizes {
    vocabulary: u64,
    hidden: u64,
    heads: u64,
    width: u64,
    layers: usize,
    /// Number of learned positions, and the row of the first one.
    rows: u64,
    offset: u64,
    /// Number of token types.
    types: u64,
    epsilon: f64,
    activation: Activation,
}

/// Reads a config. `offset` is the row of the first position; tensor names may start with `prefix`.
pub(super) fn read(config: Config<'_>, names: &TensorNames, prefix: &str, offset: u64) -> Result<Blueprint, Error> {
    if let Some(other) = config.text("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(fail(format!("`position_embedding_type` is `{other}`, expected absolute")));
    }
    let prefix = if names.has(&format!("{prefix}embeddings.word_embeddings.weight")) { prefix } else { "" };
    let sizes = EncoderSizes {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("hidden_size")?,
        heads: config.required("num_attention_heads")?,
        width: config.required("intermediate_size")?,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        rows: config.unsigned("max_position_embeddings")?.unwrap_or(512),
        offset,
        types: config.unsigned("type_vocab_size")?.unwrap_or(TYPES),
        epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-12),
        activation: config.activation("hidden_act", Activation::Gelu)?,
    };
    Ok(blueprint(names, &sizes, [prefix, "encoder.layer."]))
}

/// Reads GGUF metadata. A file stores position rows from the first used one on, so the offset is 0.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let sizes = EncoderSizes {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        width: keys.required("feed_forward_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        rows: keys.required("context_length")?,
        offset: 0,
        types: token_types(keys),
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-12),
        activation: Activation::Gelu,
    };
    Ok(blueprint(names, &sizes, ["", "model.layers."]))
}

fn blueprint(names: &TensorNames, sizes: &EncoderSizes, [prefix, layers]: [&str; 2]) -> Blueprint {
    let EncoderSizes { hidden, heads, width, rows, offset, activation, .. } = *sizes;
    // Texts use at most two types.
    let types = sizes.types.min(2);
    let norm = |module: &str| layer_norm(names, &format!("{prefix}{module}"), sizes.epsilon);
    let head_dim = hidden.checked_div(heads).unwrap_or(0);
    let layer = |index: usize| {
        let own = |module: &str| format!("{layers}{index}.{module}");
        let projection = |module: &str| projection(names, &format!("{prefix}{}", own(module)));
        let after = |module: &str| Residual { sum: Some(norm(&own(module))), ..Residual::default() };
        Layer {
            mixer: Mixer::Attention(Box::new(attention(
                heads,
                head_dim,
                [
                    projection("attention.self.query"),
                    projection("attention.self.key"),
                    projection("attention.self.value"),
                    projection("attention.output.dense"),
                ],
            ))),
            mixer_residual: after("attention.output.LayerNorm"),
            ffn: Ffn::Plain(Box::new(Plain {
                width,
                activation,
                up: projection("intermediate.dense"),
                down: projection("output.dense"),
            })),
            ffn_residual: after("output.LayerNorm"),
            parallel: false,
        }
    };
    let table = |name: &str| format!("{prefix}embeddings.{name}.weight");
    Blueprint {
        vocabulary: sizes.vocabulary,
        hidden,
        context: rows.saturating_sub(offset),
        causal: false,
        embedding: Embedding {
            weight: Tensor::named(table("word_embeddings")),
            scale: None,
            positions: Some(Positions { weight: Tensor::named(table("position_embeddings")), rows, offset }),
            types: names
                .has(&table("token_type_embeddings"))
                .then(|| TokenTypes { weight: Tensor::rows(table("token_type_embeddings"), 0, types), count: types }),
            norm: Some(norm("embeddings.LayerNorm")),
        },
        layers: (0..sizes.layers).map(layer).collect(),
        norm: None,
        output: None,
        scorer: None,
    }
}

/// Returns the number of rows of the type table. In a split, it may be in another file than the
/// keys.
fn token_types(keys: Keys<'_>) -> u64 {
    let table = keys.gguf.tensors.iter().find(|tensor| tensor.name == "token_types.weight");
    let rows = table.map(|table| table.dims.get(1).copied().unwrap_or(1));
    rows.or_else(|| keys.gguf.unsigned("tokenizer.ggml.token_type_count")).unwrap_or(TYPES)
}
