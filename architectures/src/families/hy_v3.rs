//! Hunyuan 3: norms of heads, experts with sigmoid scores after a dense first layer.

use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "hy_v3",
    model_types: &["hy_v3"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm"), ("exp_probs_b", "mlp.gate.e_score_correction_bias")],
        ..GgufForm::not_yet("hy_v3")
    },
    hugging_face: HuggingFaceForm::of("HYV3ForCausalLM", "hy_v3"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 131_072, theta: 11_158_840.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("moe_intermediate_size", "expert_hidden_dim")]);
    let dense = Dense {
        head_norms: true,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    let sizes = ExpertSizes {
        count: experts::count(config, 192)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(1536),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: dense.activation,
    };
    let mut blueprint = dense.blueprint(names);
    let common = config.unsigned("num_shared_experts")?.unwrap_or(1);
    let layers = ExpertLayers {
        sizes,
        sparse: experts::after_dense_layers(config, blueprint.layers.len(), 1)?,
        module: "mlp",
        modules: MODULES,
        shared: (common > 0).then(|| ("shared_mlp", sizes.width.saturating_mul(common))),
    };
    let rule = SigmoidRouter::normalized(config.float("router_scaling_factor")?.unwrap_or(2.826));
    layers.add(names, &mut blueprint, |router, module| {
        router.projection = projection(names, &format!("{module}.router.gate"));
        rule.set(router, names, format!("{module}.expert_bias"));
    });
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
