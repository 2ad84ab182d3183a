//! `DistilBERT`: BERT with its own names and without token types.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::dense::layer_count;
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "distilbert",
    model_types: &["distilbert"],
    read_config,
    // The converter writes BERT's architecture.
    gguf: &GgufForm::not_yet("bert"),
    hugging_face: HuggingFaceForm::of("DistilBertModel", "distilbert"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("distilbert.embeddings.word_embeddings.weight") { "distilbert." } else { "" };
    let rows = config.unsigned("max_position_embeddings")?.unwrap_or(512);
    let encoder = Encoder {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("dim")?,
        heads: config.required("n_heads")?,
        width: config.required("hidden_dim")?,
        layers: layer_count(config.required("n_layers")?)?,
        context: rows,
        epsilon: 1e-12,
        activation: config.activation("activation", Activation::Gelu)?,
        rope: None,
        positions: Some((rows, 0)),
        types: 0,
        names: EncoderNames {
            root: root.to_owned(),
            tables: ["embeddings.word_embeddings", "embeddings.position_embeddings", ""],
            embedding_norm: "embeddings.LayerNorm",
            layers: "transformer.layer.",
            attention: AttentionNames::Separate([
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
            ]),
            norms: ["sa_layer_norm", "output_layer_norm"],
            network: NetworkNames::Plain(["ffn.lin1", "ffn.lin2"]),
        },
    };
    Ok(encoder.blueprint(names))
}
