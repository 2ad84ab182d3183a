//! Solar Open: a Llama with experts that have sigmoid scores, in all layers.

use super::deepseek_v2::add_experts;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::experts::SigmoidRouter;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "solar_open",
    model_types: &["solar_open"],
    read_config,
    gguf: &GgufForm::not_yet("glm4moe"),
    hugging_face: HuggingFaceForm::of("SolarOpenForCausalLM", "solar_open"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 131_072, theta: 1_000_000.0 };

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("n_shared_experts", 1.0), ("n_routed_experts", 128.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    let mut blueprint = dense.blueprint(names);
    let rule = SigmoidRouter::from_config(config, true, 1.0)?;
    add_experts(config, names, &mut blueprint, 0, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}
