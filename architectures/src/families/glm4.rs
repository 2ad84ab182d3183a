//! GLM-4: interleaved `RoPE` on half of each head, norms before and after the parts of a layer,
//! gate and up in one tensor.

use crate::blueprint::{Blueprint, Ffn, HeadLayout, Tensor};
use crate::config_json::{Config, share};
use crate::dense::{Defaults, Dense, LLAMA, NormNames};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "glm4",
    model_types: &["glm4", OF_VISION],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        // The name by which Ollama publishes GLM-OCR, with gate and up in two tensors.
        also: &[Alias {
            architecture: OF_OCR,
            names: &[
                ("attn_out", "self_attn.o_proj"),
                ("post_attn_norm", "post_self_attn_layernorm"),
                ("post_ffn_norm", "post_mlp_layernorm"),
                ("ffn_up", "mlp.up_proj"),
            ],
        }],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("glm4")
    },
    hugging_face: HuggingFaceForm::of("Glm4ForCausalLM", "glm4").interleaved(),
};

/// Ollama's name for GLM-OCR.
const OF_OCR: &str = "glmocr";
/// Text part of GLM-4.1V.
const OF_VISION: &str = "glm4v_text";
const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(128), context: 131_072, ..LLAMA };
/// Those of the text part of models with vision.
const VISION_DEFAULTS: Defaults = Defaults { head_dim: None, context: 32_768, ..DEFAULTS };
const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: Some("post_self_attn_layernorm"),
    before_ffn: Some("post_attention_layernorm"),
    after_ffn: Some("post_mlp_layernorm"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let (defaults, epsilon) =
        if config.text("model_type") == Some(OF_VISION) { (VISION_DEFAULTS, 1e-5) } else { (DEFAULTS, 1.562_5e-7) };
    let mut dense = Dense {
        norms: NORMS,
        layout: HeadLayout::Interleaved,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(epsilon),
        ..Dense::from_config(config, defaults)?
    };
    dense.rotate_part(config, 2)?;
    Ok(fused(dense.blueprint(names)))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    // Rows of models with vision, which have sections of positions, are in the other order.
    let has_sections = |key: &str| {
        let sections = keys.gguf.array(&keys.name(key));
        sections.is_some_and(|sections| sections.iter().any(|size| size.as_u64() != Some(0)))
    };
    let is_half = has_sections("rope.dimension_sections") || has_sections("rope.mrope_section");
    let layout = if is_half { HeadLayout::Half } else { HeadLayout::Interleaved };
    let mut dense = Dense { norms: NORMS, layout, ..Dense::from_gguf(keys)? };
    if keys.architecture == OF_OCR {
        let rotated = keys.float("rope.partial_rotary_factor")?.map(|factor| share(dense.head_dim, factor));
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            rope.dimension = rotated.filter(|rotated| *rotated != dense.head_dim);
        }
        return Ok(dense.blueprint(names));
    }
    Ok(fused(dense.blueprint(names)))
}

/// Sets gate and up to the rows of the fused tensor.
pub(super) fn fused(mut blueprint: Blueprint) -> Blueprint {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Gated(gated) = &mut layer.ffn else { continue };
        let name = format!("model.layers.{index}.mlp.gate_up_proj.weight");
        gated.gate.weight = Tensor::rows(&name, 0, gated.width);
        gated.up.weight = Tensor::rows(&name, gated.width, gated.width);
    }
    blueprint
}
