//! Qwen 3 with experts.

use super::{llama, qwen2};
use crate::blueprint::{Blueprint, Ffn, Matrices, Projection, RouterScores, Rows, Tensor, View};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, experts, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    model_types: &["qwen3_moe", STACKED],
    read_config,
    gguf: &GgufForm {
        also: &[Alias::of("qwen3vlmoe")],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("qwen3moe")
    },
    hugging_face: HuggingFaceForm::of("Qwen3MoeForCausalLM", "qwen3_moe"),
};

/// Text part of Qwen3-VL, which stores experts as stacks.
const STACKED: &str = "qwen3_vl_moe_text";
const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), context: 32_768, ..LLAMA };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 128, width: 768, top_k: 8, normalize: false, shared_width: None };

/// Numbers that the class of the text part of Qwen3-VL has for missing keys.
const VISION: &[(&str, f64)] = &[
    ("max_position_embeddings", 128_000.0),
    ("rope_theta", 500_000.0),
    ("num_key_value_heads", 16.0),
    ("num_local_experts", 60.0),
    ("num_experts_per_tok", 4.0),
    ("moe_intermediate_size", 1408.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let is_of_vision = config.text("model_type") == Some(STACKED);
    let config = if is_of_vision { config.with_defaults(VISION) } else { config };
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    qwen2::slide(&mut dense, config)?;
    let mut blueprint = dense.blueprint(names);
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    if is_of_vision {
        // The class has no key for it.
        for layer in &mut blueprint.layers {
            if let Ffn::Experts(own) = &mut layer.ffn {
                own.router.normalize = true;
            }
        }
    }
    // transformers 5 saves the stacks as all other families do.
    if is_of_vision && config.saved_by()?.is_none_or(|version| version < 5) {
        stack(&mut blueprint, names);
    }
    Ok(blueprint)
}

/// Sets the experts to transposed stacks, with gate and up in one tensor.
fn stack(blueprint: &mut Blueprint, names: &TensorNames) {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Experts(own) = &mut layer.ffn else { continue };
        let module = format!("model.layers.{index}.mlp");
        if experts::switched(names, &module).is_some() {
            continue;
        }
        let stack = |name: &str, rows: Option<Rows>| {
            let module = format!("{module}.experts.{name}");
            let weight = Tensor { name: module.clone(), view: View { rows, transposed: true, item: None } };
            Matrices::Items(Projection { module, weight, bias: None, clamps: None })
        };
        let part = |first: u64| stack("gate_up_proj", Some(Rows::run(first, own.width)));
        (own.gate, own.up, own.down) = (Some(part(0)), part(own.width), stack("down_proj", None));
    }
}

/// Reads GGUF metadata with llama.cpp's constants: weights of the selected experts are divided by
/// their sum.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
