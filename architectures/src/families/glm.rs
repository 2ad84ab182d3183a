//! GLM-4 of 2024: a Llama whose gate and up projections are stored in one tensor, with `RoPE` on
//! half of each head.

use super::glm4;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::projection;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::one_by_one;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "glm",
    model_types: &["glm"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("chatglm")
    },
    hugging_face: HuggingFaceForm::of("GlmForCausalLM", "glm").interleaved(),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(128), context: 131_072, theta: 10_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        layout: HeadLayout::Interleaved,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1.562_5e-7),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 2)?;
    Ok(glm4::fused(dense.blueprint(names)))
}

/// Reads GGUF metadata. Files of the older class have queries, keys and values in one tensor.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = glm4::fused(dense.blueprint(names));
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let all = projection(names, &format!("model.layers.{index}.self_attn.qkv_proj"));
        if names.has(&all.weight.name) {
            [attention.query, attention.key, attention.value] = one_by_one(&all, sizes);
        }
    }
    Ok(blueprint)
}
