//! `FlexOlmo`: the norms of `OLMo` 2 and experts.

use super::olmo2;
use crate::blueprint::{Blueprint, Ffn};
use crate::config_json::Config;
use crate::experts::{ExpertSizes, MODULES, count, experts};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "flex_olmo",
    model_types: &["flex_olmo"],
    read_config,
    gguf: &GgufForm::not_yet("flexolmo"),
    hugging_face: HuggingFaceForm::of("FlexOlmoForCausalLM", "flex_olmo"),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] =
    &[("max_position_embeddings", 4096.0), ("rms_norm_eps", 1e-6), ("rope_theta", 500_000.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut blueprint = olmo2::read_config(config, names)?;
    let sizes = ExpertSizes {
        count: count(config, 7)?,
        width: config.required("intermediate_size")?,
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(5),
        activation: config.activation("hidden_act", crate::Activation::Silu)?,
    };
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let mut own = experts(names, &format!("model.layers.{index}.mlp"), MODULES, sizes);
        own.router.normalize = normalize;
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}
