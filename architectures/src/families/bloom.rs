//! BLOOM: scores that fall with the distance, queries, keys and values stored head by head, a norm
//! of the embedding.

use crate::blueprint::{Activation, Blueprint, NormKind, PositionBias, Slopes};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{self, by_key_head, without_gates_in};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bloom",
    model_types: &["bloom"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_norm", "post_attention_layernorm")],
        model_names: &[
            ("token_embd_norm.weight", "model.embed_norm.weight"),
            ("token_embd_norm.bias", "model.embed_norm.bias"),
        ],
        ..GgufForm::not_yet("bloom")
    },
    hugging_face: HuggingFaceForm::of("BloomForCausalLM", "bloom"),
};

const KEYS: &[(&str, &str)] =
    &[("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"), ("hidden_size", "n_embed")];
const DEFAULTS: Defaults = LLAMA;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    const ALL: &str = "self_attention.query_key_value";
    if config.flag("apply_residual_connection_post_layernorm")? == Some(true) {
        return Err(fail("`apply_residual_connection_post_layernorm` is true, which cannot be run yet"));
    }
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        root: "transformer.",
        layer_list: "h",
        attention_modules: [ALL, ALL, ALL, "self_attention.dense"],
        final_norm: "ln_f",
        embedding: "word_embeddings.weight",
        ..Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?
    };
    dense.activation = Activation::GeluTanh;
    dense.widen_by_four();
    let (sizes, epsilon) = ([dense.heads, dense.kv_heads, dense.head_dim], dense.norm_epsilon);
    let mut blueprint = dense.blueprint(names);
    let root = if names.has("transformer.word_embeddings.weight") { "transformer." } else { "" };
    blueprint.embedding.norm = Some(layer_norm(names, &format!("{root}word_embeddings_layernorm"), epsilon));
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let all = projection(names, &format!("{root}h.{index}.{ALL}"));
        [attention.query, attention.key, attention.value] = by_key_head(&all, sizes);
    }
    let modules = ["mlp.dense_h_to_4h", "mlp.dense_4h_to_h"];
    Ok(with_slopes(without_gates_in(blueprint, names, &format!("{root}h"), modules), Slopes::USUAL))
}

/// Replaces `RoPE` by scores that fall with the distance.
pub(super) fn with_slopes(mut blueprint: Blueprint, slopes: Slopes) -> Blueprint {
    for attention in blueprint.attentions_mut() {
        attention.rope = None;
        attention.position_bias = Some(PositionBias::Slopes(slopes));
    }
    blueprint
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let epsilon = plain::with_layer_norms(keys)?.norm_epsilon;
    let mut blueprint = plain::from_gguf(keys, names, Activation::GeluTanh)?;
    blueprint.embedding.norm = Some(layer_norm(names, "model.embed_norm", epsilon));
    Ok(with_slopes(blueprint, Slopes::USUAL))
}
