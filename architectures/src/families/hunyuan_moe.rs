//! Hunyuan A13B: Hunyuan with experts and a network beside them in all layers.

use super::hunyuan::{dense, with_norms};
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Dense, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "hunyuan_moe",
    model_types: &["hunyuan_v1_moe"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("hunyuan-moe") },
    hugging_face: HuggingFaceForm::of("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("head_dim", "attention_head_dim")]);
    let dense = dense(config)?;
    let sizes = ExpertSizes {
        count: experts::count(config, 1)?,
        width: config.number_or_same("moe_intermediate_size")?.unwrap_or(dense.intermediate),
        top_k: config.number_or_same("moe_topk")?.unwrap_or(1),
        activation: dense.activation,
    };
    let common = config.number_or_same("num_shared_expert")?.unwrap_or(1);
    let width = sizes.width.saturating_mul(common);
    let layers = ExpertLayers {
        sizes,
        sparse: vec![true; dense.layers.len()],
        module: "mlp",
        modules: MODULES,
        shared: (common > 0).then_some(("shared_mlp", width)),
    };
    let mut blueprint = with_norms(dense, names);
    layers.add(names, &mut blueprint, |router, module| {
        router.projection = projection(names, &format!("{module}.gate.wg"));
        router.normalize = true;
    });
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { head_norms: names.has("model.layers.0.self_attn.q_norm.weight"), ..Dense::from_gguf(keys)? };
    let mut blueprint = with_norms(dense, names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
