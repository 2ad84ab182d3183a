//! GTE v1.5 and Snowflake Arctic Embed 2: a BERT with `RoPE` and gated networks.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::encoder::{AttentionNames, Encoder, EncoderDefaults, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

const DEFAULTS: EncoderDefaults =
    EncoderDefaults { context: 8192, epsilon: 1e-12, activation: Activation::Gelu, theta: 160_000.0, types: 0 };

pub(super) const FAMILY: Family = Family {
    name: "gte",
    model_types: &["gte", "new"],
    read_config,
    gguf: &GgufForm::not_yet("gte"),
    hugging_face: HuggingFaceForm::of("GteModel", "gte"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("new.embeddings.word_embeddings.weight") { "new." } else { "" };
    let own = EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
        embedding_norm: "embeddings.LayerNorm",
        layers: "encoder.layer.",
        attention: AttentionNames::Together(["attention.qkv_proj", "attention.o_proj"]),
        norms: ["attn_ln", "mlp_ln"],
        network: NetworkNames::Together(["mlp.up_gate_proj", "mlp.down_proj"]),
    };
    let encoder = Encoder {
        activation: config.activation("hidden_act", DEFAULTS.activation)?,
        ..Encoder::from_config(config, &DEFAULTS, own)?
    };
    Ok(encoder.blueprint(names))
}
