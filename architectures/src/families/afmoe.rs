//! `AFMoE` (Trinity): gated attention with norms of heads, four norms in a layer, `RoPE` on sliding
//! layers only, experts with sigmoid scores after dense first layers.

use crate::blueprint::{AttentionGate, Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, NormNames, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "afmoe",
    model_types: &["afmoe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_mlp_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("attn_gate", "self_attn.gate_proj"),
        ],
        ..GgufForm::not_yet("afmoe")
    },
    hugging_face: HuggingFaceForm::of("AfmoeForCausalLM", "afmoe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: None, head_dim: Some(128), context: 16_384, theta: 10_000.0 };
/// Every fourth layer has full attention.
const PATTERN: u64 = 4;
const WINDOW: u64 = 1024;
const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: Some("pre_mlp_layernorm"),
    after_ffn: Some("post_mlp_layernorm"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    if config.flag("mup_enabled")?.unwrap_or(false) {
        dense.embedding_scale = Some((dense.hidden as f64).sqrt());
    }
    dense.slide_by_config(config, config.step("global_attn_every_n_layers", PATTERN)?, WINDOW)?;
    let sizes = ExpertSizes {
        count: experts::count(config, 64)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(1408),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(6),
        activation: dense.activation,
    };
    let mut blueprint = gated(dense, names);
    let first = config.unsigned("num_dense_layers")?.unwrap_or(1);
    let common = config.unsigned("num_shared_experts")?.unwrap_or(2);
    let layers = ExpertLayers {
        sizes,
        sparse: (0..blueprint.layers.len() as u64).map(|layer| layer >= first).collect(),
        module: "mlp",
        modules: MODULES,
        shared: (common > 0).then(|| ("shared_experts", sizes.width.saturating_mul(common))),
    };
    let rule = SigmoidRouter::normalized(config.float("route_scale")?.unwrap_or(1.0));
    layers.add(names, &mut blueprint, |router, module| {
        router.projection = projection(names, &format!("{module}.router.gate"));
        rule.set(router, names, format!("{module}.expert_bias"));
    });
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_gguf(keys)?;
    // The converter writes no factor; llama.cpp always uses the root of the width.
    dense.embedding_scale = Some((dense.hidden as f64).sqrt());
    dense.slide_by_keys(keys, PATTERN, WINDOW)?;
    let mut blueprint = gated(dense, names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}

/// Returns the blueprint with the norms and gates of this family.
fn gated(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut dense = Dense { norms: NORMS, head_norms: true, ..dense };
    dense.rotate_sliding_layers_only();
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let gate = projection(names, &format!("model.layers.{index}.self_attn.gate_proj"));
        attention.gate = Some(AttentionGate::sigmoid(gate));
    }
    blueprint
}
