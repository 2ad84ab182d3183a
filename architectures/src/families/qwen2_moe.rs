//! Qwen 1.5 and 2 with experts: a shared expert with a gate beside those that a router chooses.

use super::{llama, qwen2};
use crate::blueprint::{Blueprint, Ffn};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{self, MODULES, count, experts, shared, sparse_layers};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, names};

pub(super) const FAMILY: Family = Family {
    name: "qwen2_moe",
    model_types: &["qwen2_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: names::PRE_NORMS,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("qwen2moe")
    },
    hugging_face: HuggingFaceForm::of("Qwen2MoeForCausalLM", "qwen2_moe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(16), context: 32_768, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    qwen2::slide(&mut dense, config)?;
    let sparse = sparse_layers(config, dense.layers.len() as u64)?;
    let numbers = [
        count(config, 60)?,
        config.unsigned("moe_intermediate_size")?.unwrap_or(1408),
        config.unsigned("num_experts_per_tok")?.unwrap_or(4),
    ];
    let width = config.unsigned("shared_expert_intermediate_size")?.unwrap_or(5632);
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| sparse[*index]) {
        let module = format!("model.layers.{index}.mlp");
        let mut own = experts(names, &module, MODULES, numbers);
        own.router.normalize = normalize;
        let gate = format!("{module}.shared_expert_gate");
        own.shared = Some(shared(names, &format!("{module}.shared_expert"), Some(&gate), width));
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}

/// llama.cpp's constants: weights of the chosen experts are used as they are.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: false, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, false)?;
    Ok(blueprint)
}
