//! Phi 3 and 3.5 with their usual context: a Llama with q, k and v in one tensor, and gate and up
//! in one tensor. All layers slide if the config has a window.

use serde_json::{Value as Json, json};

use super::llama;
use crate::blueprint::{Blueprint, Ffn, HeadLayout, Mixer, Tensor};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    model_types: &["phi3", "phi4_multimodal", "phi4mm"],
    read_config,
    gguf: &GgufForm {
        architecture: "phi3",
        also: &[],
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        model_names: &[],
        layout: HeadLayout::Half,
        attention_scale: Some(llama::by_head_size),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields,
    },
};

const DEFAULTS: Defaults = Defaults { context: 4096, ..crate::dense::LLAMA };

const EPSILON: f64 = 1e-5;
/// Numbers that the class of Phi-4 Multimodal has for missing keys.
const MULTIMODAL: &[(&str, f64)] = &[("max_position_embeddings", 131_072.0), ("num_key_value_heads", 8.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let is_multimodal = config.text("model_type") != Some("phi3");
    let config = if is_multimodal { config.with_defaults(MULTIMODAL) } else { config };
    let mut dense = Dense {
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(EPSILON),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_all(config, None)?;
    Ok(fused(dense.blueprint(names)))
}

/// Reads GGUF metadata. The window of a file applies, because the model was trained with it;
/// llama.cpp ignores it.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(fused(Dense::from_gguf(keys)?.blueprint(names)))
}

/// Sets the projections to rows of the fused tensors: queries, keys, values; gate, up.
fn fused(mut blueprint: Blueprint) -> Blueprint {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let (Mixer::Attention(attention), Ffn::Gated(gated)) = (&mut layer.mixer, &mut layer.ffn) else { continue };
        let name = |module: &str| format!("model.layers.{index}.{module}.weight");
        // The check of the blueprint refuses sizes that overflow.
        let [queries, keys] =
            [attention.heads, attention.kv_heads].map(|heads| heads.saturating_mul(attention.head_dim));
        let first_value = queries.saturating_add(keys);
        attention.query.weight = Tensor::rows(name("self_attn.qkv_proj"), 0, queries);
        attention.key.weight = Tensor::rows(name("self_attn.qkv_proj"), queries, keys);
        attention.value.weight = Tensor::rows(name("self_attn.qkv_proj"), first_value, keys);
        gated.gate.weight = Tensor::rows(name("mlp.gate_up_proj"), 0, gated.width);
        gated.up.weight = Tensor::rows(name("mlp.gate_up_proj"), gated.width, gated.width);
    }
    blueprint
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_activation(blueprint, crate::Activation::Silu, "SiLU")?;
    llama::only_usual_frequencies(blueprint)?;
    Ok(Vec::new())
}

fn fields(blueprint: &Blueprint, _: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let window = blueprint.attentions().find_map(|attention| attention.window);
    vec![("attention_bias", false.into()), ("sliding_window", json!(window))]
}
