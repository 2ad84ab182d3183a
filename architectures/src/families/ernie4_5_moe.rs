//! ERNIE 4.5 with experts: softmax scores, a bias for the selection, dense first layers.

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout, RouterScores, Tensor};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "ernie4_5_moe",
    model_types: &["ernie4_5_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("ernie4_5-moe")
    },
    hugging_face: HuggingFaceForm::of("Ernie4_5_MoeForCausalLM", "ernie4_5_moe").interleaved(),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: None, context: 131_072, theta: 500_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        layout: HeadLayout::Interleaved,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    let sizes = ExpertSizes {
        count: config.unsigned("moe_num_experts")?.unwrap_or(64),
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(1536),
        top_k: config.unsigned("moe_k")?.unwrap_or(6),
        activation: dense.activation,
    };
    let mut blueprint = dense.blueprint(names);
    let common = config.unsigned("moe_num_shared_experts")?.unwrap_or(2);
    let layers = ExpertLayers {
        sizes,
        sparse: sparse_layers(config, blueprint.layers.len())?,
        module: "mlp",
        modules: MODULES,
        shared: (common > 0).then(|| ("shared_experts", sizes.width.saturating_mul(common))),
    };
    layers.add(names, &mut blueprint, |router, module| {
        router.normalize = true;
        let bias = format!("{module}.moe_statics.e_score_correction_bias");
        router.bias = names.has(&bias).then(|| Tensor::named(bias));
    });
    Ok(blueprint)
}

/// Returns for each layer whether it has experts: every `moe_layer_interval`-th layer between the
/// start and the end index. -1 stands for the last layer.
fn sparse_layers(config: Config<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let first = config.unsigned("moe_layer_start_index")?.unwrap_or(1);
    let step = config.step("moe_layer_interval", 1)?;
    let is_last = config.float("moe_layer_end_index")?.is_none_or(|index| index < 0.0);
    let last = if is_last { u64::MAX } else { config.unsigned("moe_layer_end_index")?.unwrap_or(u64::MAX) };
    let is_sparse = |layer: u64| (layer + 1).is_multiple_of(step) && layer >= first && layer <= last;
    Ok((0..layers as u64).map(is_sparse).collect())
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = llama::read_interleaved(keys, names)?;
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
