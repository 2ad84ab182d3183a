//! Phi-3.5 with experts: layer norms, experts that are chosen one after the other.

use crate::blueprint::{Blueprint, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense};
use crate::experts::{ExpertLayers, ExpertSizes, count};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "phimoe",
    model_types: &["phimoe"],
    read_config,
    gguf: &GgufForm::not_yet("phimoe"),
    hugging_face: HuggingFaceForm::of("PhimoeForCausalLM", "phimoe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: None, context: 131_072, theta: 1_000_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_all(config, None)?;
    if let Some(magnitude) = magnitude(config)? {
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            rope.magnitude = magnitude;
        }
    }
    let sizes = ExpertSizes {
        count: count(config, 16)?,
        width: dense.intermediate,
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(2),
        activation: dense.activation,
    };
    let nearness = 2.0 * config.float("router_jitter_noise")?.unwrap_or(0.01);
    let mut blueprint = dense.blueprint(names);
    let sparse = vec![true; blueprint.layers.len()];
    let layers = ExpertLayers { sizes, sparse, module: "block_sparse_moe", modules: ["w1", "w3", "w2"], shared: None };
    layers.add(names, &mut blueprint, |router, _| router.nearness = Some(nearness));
    Ok(blueprint)
}

/// Returns the factor of rotated elements that published configs state for short and for long
/// texts.
fn magnitude(config: Config<'_>) -> Result<Option<f64>, Error> {
    let newer = config.object("rope_parameters")?;
    let scaling = if newer.is_some() { newer } else { config.object("rope_scaling")? };
    let Some(scaling) = scaling else { return Ok(None) };
    let (short, long) = (scaling.float("short_mscale")?, scaling.float("long_mscale")?);
    if short != long {
        return Err(fail("`short_mscale` differs from `long_mscale`, which cannot be run yet"));
    }
    Ok(short)
}
