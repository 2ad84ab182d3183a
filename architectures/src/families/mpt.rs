//! MPT: scores that fall with the distance, queries, keys and values in one tensor, no biases.

use super::bloom::with_slopes;
use crate::blueprint::{Activation, Blueprint, NormKind, Slopes};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::plain::{self, one_by_one, without_gates_in};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mpt",
    model_types: &["mpt"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_norm", "post_attention_layernorm")],
        ..GgufForm::not_yet("mpt")
    },
    hugging_face: HuggingFaceForm::of("MptForCausalLM", "mpt"),
};

const KEYS: &[(&str, &str)] = &[
    ("num_attention_heads", "n_heads"),
    ("num_hidden_layers", "n_layers"),
    ("hidden_size", "d_model"),
    ("max_position_embeddings", "max_seq_len"),
];
const DEFAULTS: Defaults = LLAMA;
const NORMS: NormNames =
    NormNames { before_mixer: Some("norm_1"), after_mixer: None, before_ffn: Some("norm_2"), after_ffn: None };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    const ALL: &str = "attn.Wqkv";
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        norms: NORMS,
        root: "transformer.",
        layer_list: "blocks",
        attention_modules: [ALL, ALL, ALL, "attn.out_proj"],
        final_norm: "norm_f",
        embedding: "wte.weight",
        ..Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?
    };
    dense.activation = Activation::Gelu;
    dense.intermediate = dense.hidden.saturating_mul(config.unsigned("expansion_ratio")?.unwrap_or(4));
    // The first implementation has this factor; transformers and llama.cpp do not.
    dense.output_scale = match config.text("logit_scale") {
        Some("inv_sqrt_d_model") => Some((dense.hidden as f64).powf(-0.5)),
        _ => config.float("logit_scale")?,
    };
    let own = config.object("attn_config")?;
    let flag = |key: &str| own.map_or(Ok(None), |own| own.flag(key));
    if flag("alibi")? == Some(false) {
        return Err(fail("`alibi` is false: learned positions of MPT cannot be run yet"));
    }
    for key in ["qk_ln", "prefix_lm"] {
        if flag(key)? == Some(true) {
            return Err(fail(format!("`{key}` is true, which cannot be run yet")));
        }
    }
    let number = |key: &str| own.map_or(Ok(None), |own| own.float(key));
    let exponent = number("alibi_bias_max")?.unwrap_or(Slopes::USUAL.exponent);
    dense.attention_scale = number("softmax_scale")?.unwrap_or(dense.attention_scale);
    let clip = number("clip_qkv")?.filter(|clip| *clip != 0.0);
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.clip = clip;
        let all = projection(names, &format!("transformer.blocks.{index}.{ALL}"));
        [attention.query, attention.key, attention.value] = one_by_one(&all, sizes);
    }
    let blueprint = without_gates_in(blueprint, names, "transformer.blocks", ["ffn.up_proj", "ffn.down_proj"]);
    Ok(with_slopes(blueprint, Slopes { exponent, ..Slopes::USUAL }))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let exponent = keys.float("attention.max_alibi_bias")?.unwrap_or(0.0);
    if exponent == 0.0 {
        return Err(gguf_keys::fail("`attention.max_alibi_bias` is 0: learned positions of MPT cannot be run yet"));
    }
    for own in ["self_attn.q_norm", "self_attn.k_norm", "ffn_act.scales"] {
        if names.has(&format!("model.layers.0.{own}.weight")) || names.has(&format!("blk.0.{own}")) {
            return Err(gguf_keys::fail(format!("layers have `{own}`, which cannot be run for MPT yet")));
        }
    }
    let clip = keys.float("attention.clamp_kqv")?.filter(|clip| *clip != 0.0);
    let mut blueprint = plain::from_gguf(keys, names, Activation::Gelu)?;
    for attention in blueprint.attentions_mut() {
        attention.clip = clip;
    }
    Ok(with_slopes(blueprint, Slopes { exponent, ..Slopes::USUAL }))
}
