//! BERT, and `RoBERTa`, which counts positions from another one on: encoders that embed texts.

use crate::blueprint::{Activation, Blueprint, Embedding, Ffn, Layer, Mixer, Plain, Positions, Residual, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{layer_count, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::{attention, layer_norm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bert",
    model_types: &["bert"],
    read_config: |config, names| read(config, names, "bert.", 0),
    gguf: &GgufForm::not_yet("bert"),
    hugging_face: HuggingFaceForm::of("BertModel", "bert"),
};

/// `offset` is the row of the first position; tensors may have `prefix` before their names.
pub(super) fn read(config: Config<'_>, names: &TensorNames, prefix: &str, offset: u64) -> Result<Blueprint, Error> {
    if let Some(other) = config.text("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(fail(format!("`position_embedding_type` is `{other}`, expected absolute")));
    }
    let prefix = if names.has(&format!("{prefix}embeddings.word_embeddings.weight")) { prefix } else { "" };
    let epsilon = config.float("layer_norm_eps")?.unwrap_or(1e-12);
    let norm = |module: &str| layer_norm(names, &format!("{prefix}{module}"), epsilon);
    let (hidden, rows) = (config.required("hidden_size")?, config.unsigned("max_position_embeddings")?.unwrap_or(512));
    let heads = config.required("num_attention_heads")?;
    let head_dim = hidden.checked_div(heads).unwrap_or(0);
    let width = config.required("intermediate_size")?;
    let activation = config.activation("hidden_act", Activation::Gelu)?;
    let layer = |index: usize| {
        let own = |module: &str| format!("encoder.layer.{index}.{module}");
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
    Ok(Blueprint {
        vocabulary: config.required("vocab_size")?,
        hidden,
        context: rows.saturating_sub(offset),
        causal: false,
        embedding: Embedding {
            weight: Tensor::named(table("word_embeddings")),
            scale: None,
            positions: Some(Positions { weight: Tensor::named(table("position_embeddings")), rows, offset }),
            // Texts are of the first type.
            constant: Some(Tensor::rows(table("token_type_embeddings"), 0, 1)),
            norm: Some(norm("embeddings.LayerNorm")),
        },
        layers: (0..layer_count(config.required("num_hidden_layers")?)?).map(layer).collect(),
        norm: None,
        output: None,
    })
}
