//! GTE v1.5 and Snowflake Arctic Embed 2: a BERT with `RoPE` and gated networks.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::{Config, fail};
use crate::encoder::{AttentionNames, Encoder, EncoderDefaults, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, RopeScaling, TensorNames};

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
        ..Encoder::without_rope(config, &DEFAULTS, own)?
    };
    let rope = match config.object("rope_scaling")? {
        Some(scaling) if scaling.text("type") == Some("ntk") => stretched(config, scaling, encoder.head_dim())?,
        _ => config.rope("full_attention", DEFAULTS.theta)?,
    };
    Ok(Encoder { rope: Some(rope), ..encoder }.blueprint(names))
}

/// Returns the `RoPE` of published configs: a factor multiplies the base, and its root of the order
/// of half a head divides all frequencies. The formula is that of the models' own class.
fn stretched(config: Config<'_>, scaling: Config<'_>, head_dim: u64) -> Result<Rope, Error> {
    if scaling.value("mixed_b").is_some() {
        return Err(fail("`rope_scaling` has `mixed_b`, which cannot be run yet"));
    }
    let factor = scaling.float("factor")?.unwrap_or(1.0);
    let base = config.float("rope_theta")?.unwrap_or(10_000.0);
    let divisor = factor.powf(2.0 / head_dim as f64);
    Ok(Rope::plain(base * factor).scaled(RopeScaling::Linear { factor: divisor }, 1.0))
}
