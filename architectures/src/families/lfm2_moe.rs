//! LFM2 with experts: sigmoid scores with a bias for the selection, after dense first layers.

use super::lfm2;
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::Dense;
use crate::experts::{self, ExpertLayers, ExpertSizes, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "lfm2_moe",
    model_types: &["lfm2_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: lfm2::NAMES,
        model_names: lfm2::MODEL_NAMES,
        ..GgufForm::not_yet("lfm2moe")
    },
    hugging_face: HuggingFaceForm::of("Lfm2MoeForCausalLM", "lfm2_moe"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, lfm2::DEFAULTS)?;
    dense.norm_epsilon = config.float("norm_eps")?.unwrap_or(1e-5);
    let sizes = ExpertSizes {
        count: experts::count(config, 32)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(1792),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(4),
        activation: dense.activation,
    };
    let mut blueprint = lfm2::with_mixers(dense, config, names)?;
    let first = config.unsigned("num_dense_layers")?.unwrap_or(2);
    let layers = ExpertLayers {
        sizes,
        sparse: (0..blueprint.layers.len() as u64).map(|layer| layer >= first).collect(),
        module: "feed_forward",
        modules: ["w1", "w3", "w2"],
        shared: None,
    };
    let rule = SigmoidRouter::from_config(config, true, 1.0)?;
    let is_biased = config.flag("use_expert_bias")?.unwrap_or(true);
    layers.add(names, &mut blueprint, |router, module| {
        rule.set(router, names, format!("{module}.expert_bias"));
        router.bias = router.bias.take().filter(|_| is_biased);
    });
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = lfm2::from_gguf(keys, names)?;
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
