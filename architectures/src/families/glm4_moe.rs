//! GLM-4.5: experts with sigmoid scores after a dense first layer, `RoPE` on half of each head.

use super::deepseek_v2::add_experts;
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{self, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "glm4_moe",
    model_types: &["glm4_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("post_attention_norm", "post_attention_layernorm")],
        ..GgufForm::not_yet("glm4moe")
    },
    hugging_face: HuggingFaceForm::of("Glm4MoeForCausalLM", "glm4_moe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 131_072, ..LLAMA };

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("n_routed_experts", 128.0), ("n_shared_experts", 1.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let head_norms = config.flag("use_qk_norm")?.unwrap_or(false);
    let mut dense = Dense {
        head_norms,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 2)?;
    let mut blueprint = dense.blueprint(names);
    let rule = SigmoidRouter::from_config(config, true, 1.0)?;
    add_experts(config, names, &mut blueprint, 1, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants: sigmoid scores, weights of the selected experts
/// not normalized.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let head_norms = names.has("model.layers.0.self_attn.q_norm.weight");
    let mut blueprint = Dense { head_norms, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
