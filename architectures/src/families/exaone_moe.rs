//! K-EXAONE: the attention of EXAONE 4 with norms before the parts of a layer, experts with sigmoid
//! scores after a dense first layer.

use super::exaone4;
use crate::blueprint::{Activation, Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::PRE_NORMS;
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "exaone_moe",
    model_types: &["exaone_moe"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("exaone-moe") },
    hugging_face: HuggingFaceForm::of("ExaoneMoeForCausalLM", "exaone_moe"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = exaone4::dense(config)?;
    dense.norms = PRE_NORMS;
    let mut blueprint = dense.blueprint(names);
    let sizes = ExpertSizes {
        count: experts::count(config, 64)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(1024),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: config.activation("hidden_act", Activation::Silu)?,
    };
    let common = config.unsigned("num_shared_experts")?.unwrap_or(1);
    let layers = ExpertLayers {
        sizes,
        sparse: experts::after_dense_layers(config, blueprint.layers.len(), 1)?,
        module: "mlp",
        modules: MODULES,
        shared: (common > 0).then(|| ("shared_experts", sizes.width.saturating_mul(common))),
    };
    let rule = SigmoidRouter::from_config(config, true, 2.5)?;
    layers.add(names, &mut blueprint, |router, module| {
        rule.set(router, names, format!("{module}.e_score_correction_bias"));
    });
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = exaone4::dense_of_gguf(keys)?;
    dense.norms = PRE_NORMS;
    let mut blueprint = dense.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
