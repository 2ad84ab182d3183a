//! Qwen 3 with experts.

use super::{llama, qwen2};
use crate::blueprint::{Blueprint, Ffn};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{self, MODULES, count, experts, sparse_layers};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, names};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    model_types: &["qwen3_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: names::PRE_NORMS,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("qwen3moe")
    },
    hugging_face: HuggingFaceForm::of("Qwen3MoeForCausalLM", "qwen3_moe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), context: 32_768, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    qwen2::slide(&mut dense, config)?;
    let sparse = sparse_layers(config, dense.layers.len() as u64)?;
    let numbers = [
        count(config, 128)?,
        config.unsigned("moe_intermediate_size")?.unwrap_or(768),
        config.unsigned("num_experts_per_tok")?.unwrap_or(8),
    ];
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| sparse[*index]) {
        let mut own = experts(names, &format!("model.layers.{index}.mlp"), MODULES, numbers);
        own.router.normalize = normalize;
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}

/// llama.cpp's constants: weights of the chosen experts are divided by their sum.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true)?;
    Ok(blueprint)
}
