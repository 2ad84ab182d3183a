//! `StarCoder` 1 and `SantaCoder`: a GPT-2 whose query heads share one key and value head.

use super::{gpt_neo, gpt2, gptj};
use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::{by_key_head, one_by_one, without_gates_in};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt_bigcode",
    model_types: &["gpt_bigcode"],
    read_config,
    gguf: &GgufForm { read: Some(gpt2::read_gguf), names: gpt2::NAMES, ..GgufForm::not_yet("starcoder") },
    hugging_face: HuggingFaceForm::of("GPTBigCodeForCausalLM", "gpt_bigcode"),
};

const DEFAULTS: Defaults = Defaults { context: 1024, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(gptj::KEYS);
    let shares_key = config.flag("multi_query")?.unwrap_or(true);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::GeluTanh)?,
        norms: gpt_neo::NORMS,
        root: "transformer.",
        layer_list: "h",
        attention_modules: ["attn.c_attn", "attn.c_attn", "attn.c_attn", "attn.c_proj"],
        final_norm: "ln_f",
        embedding: "wte.weight",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.kv_heads = if shares_key { 1 } else { dense.heads };
    dense.widen_by_four();
    if config.flag("scale_attn_weights")? == Some(false) {
        dense.attention_scale = 1.0;
    }
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let all = projection(names, &format!("transformer.h.{index}.attn.c_attn"));
        let split = if shares_key { one_by_one } else { by_key_head };
        [attention.query, attention.key, attention.value] = split(&all, sizes);
    }
    Ok(gpt_neo::with_positions(without_gates_in(blueprint, names, "transformer.h", ["mlp.c_fc", "mlp.c_proj"])))
}
