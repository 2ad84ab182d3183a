//! Falcon: layer norms, queries, keys and values in one tensor, parallel attention and feed-forward
//! network.

use crate::blueprint::{
    Activation, Attention, Blueprint, Embedding, Ffn, Layer, Mixer, Output, Plain, PositionBias, Residual, Slopes,
    Tensor,
};
use crate::config_json::Config;
use crate::dense::{Dense, ONE_NORM, attention, layer_count, layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{by_key_head, one_by_one, with_layer_norms, without_gates};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "falcon",
    model_types: &["falcon"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("attn_norm_2", "ln_attn"), ("attn_qkv", "self_attn.qkv_proj")],
        ..GgufForm::not_yet("falcon")
    },
    hugging_face: HuggingFaceForm::of("FalconForCausalLM", "falcon"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let flag = |key: &str, default: bool| Ok::<_, Error>(config.flag(key)?.unwrap_or(default));
    let (hidden, count) = (config.required("hidden_size")?, config.required("num_attention_heads")?);
    let newer = flag("new_decoder_architecture", false)?;
    let kv_heads = key_heads(config, newer, count)?;
    let head_dim = hidden.checked_div(count).unwrap_or(0);
    let parallel = newer || flag("parallel_attn", true)?;
    // Newer models have a norm for each part, unless the config states that they share one.
    let two_norms = newer && config.unsigned("num_ln_in_parallel_attn")?.unwrap_or(2) == 2;
    let epsilon = config.float("layer_norm_epsilon")?.unwrap_or(1e-5);
    let width = config.unsigned("ffn_hidden_size")?.unwrap_or(hidden.saturating_mul(4));
    let activation = config.activation("activation", Activation::Gelu)?;
    // The class adds the slopes before it scales the scores.
    let slopes = Slopes { scale: (head_dim as f64).powf(-0.5), ..Slopes::USUAL };
    let falls = flag("alibi", false)?;
    // transformers 5 saves parameters of RoPE for models with slopes, too.
    let rope = Some(config.rope("full_attention", 10_000.0)?).filter(|_| !falls);
    let norm = |module: &str| layer_norm(names, &format!("transformer.{module}"), epsilon);
    let layer = |index: usize| {
        let own = |module: &str| projection(names, &format!("transformer.h.{index}.{module}"));
        let before =
            |module: &str| Residual { before: Some(norm(&format!("h.{index}.{module}"))), ..Residual::default() };
        // With one key head, the order is all queries, the key, the value.
        let [query, key, value] = by_key_head(&own("self_attention.query_key_value"), [count, kv_heads, head_dim]);
        let mixer = Attention {
            kv_heads,
            rope: rope.clone(),
            position_bias: falls.then_some(PositionBias::Slopes(slopes)),
            ..attention(count, head_dim, [query, key, value, own("self_attention.dense")])
        };
        let [mixer_norm, ffn_norm] = match (two_norms, parallel) {
            (true, _) => ["ln_attn", "ln_mlp"],
            (false, true) => ["input_layernorm"; 2],
            (false, false) => ["input_layernorm", "post_attention_layernorm"],
        };
        let (up, down) = (own("mlp.dense_h_to_4h"), own("mlp.dense_4h_to_h"));
        Layer {
            parallel,
            ..Layer::new(
                (Mixer::Attention(Box::new(mixer)), before(mixer_norm)),
                (Ffn::Plain(Box::new(Plain { width, activation, curve: None, up, down })), before(ffn_norm)),
            )
        }
    };
    let embedding = Tensor::named("transformer.word_embeddings.weight");
    let mut output = projection(names, "lm_head");
    if !names.has("lm_head.weight") {
        output.weight = embedding.clone();
    }
    Ok(Blueprint {
        vocabulary: config.required("vocab_size")?,
        hidden,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(2048),
        causal: true,
        embedding: Embedding::of_tokens(embedding),
        streams: None,
        layers: (0..layer_count(config.required("num_hidden_layers")?)?).map(layer).collect(),
        norm: Some(norm("ln_f")),
        embedder: Vec::new(),
        output: Some(Output::of(output)),
        scorer: None,
        pictures: None,
    })
}

/// Returns the number of key heads of a model of so many heads. Newer models ignore `multi_query`.
fn key_heads(config: Config<'_>, newer: bool, heads: u64) -> Result<u64, Error> {
    let multi_query = config.flag("multi_query")?.unwrap_or(true);
    if newer {
        return Ok(config.unsigned("num_kv_heads")?.unwrap_or(heads));
    }
    Ok(if multi_query { 1 } else { heads })
}

/// Reads GGUF metadata. The converter groups rows by kind: all queries, all keys, all values.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = with_layer_norms(keys)?;
    let (epsilon, sizes) = (dense.norm_epsilon, [dense.heads, dense.kv_heads, dense.head_dim]);
    let dense = Dense { activation: Activation::Gelu, parallel: true, norms: ONE_NORM, ..dense };
    let mut blueprint = without_gates(dense.blueprint(names), names, ["up_proj", "down_proj"]);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        let Mixer::Attention(attention) = &mut layer.mixer else { continue };
        let all = projection(names, &format!("{prefix}.self_attn.qkv_proj"));
        [attention.query, attention.key, attention.value] = one_by_one(&all, sizes);
        // The other norm then belongs to the feed-forward network.
        let own = format!("{prefix}.ln_attn");
        if names.has(&format!("{own}.weight")) {
            layer.mixer_residual.before = Some(layer_norm(names, &own, epsilon));
        }
    }
    Ok(blueprint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, describe, unread_keys};

    #[test]
    fn models_with_slopes_may_state_parameters_of_rope() {
        for alibi in [true, false] {
            let raw = format!(
                r#"{{"model_type":"falcon","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
                "vocab_size":320,"alibi":{alibi},"rope_parameters":{{"rope_theta":10000.0,"rope_type":"default"}}}}"#
            );
            let (document, names) = (Document::Config(raw.as_bytes()), TensorNames::default());
            assert_eq!(unread_keys(document, &names).expect("a config"), [""; 0], "alibi: {alibi}");
            let blueprint = describe(document, &names).expect("a config").blueprint;
            for attention in blueprint.attentions() {
                assert_eq!((attention.rope.is_none(), attention.position_bias.is_some()), (alibi, alibi));
            }
        }
    }
}
