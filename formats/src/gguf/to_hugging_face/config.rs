//! `config.json`, in the classic layout that every version of transformers reads.

use serde_json::{Map, Value as Json, json};

use super::special::Special;
use super::{GgufModel, rope};
use crate::hyper::{Activation, Architecture};
use crate::{Dtype, Error};

/// Makes a `config.json`.
///
/// # Errors
/// Divisors of `RoPE` that no scaling of a config gives.
pub(super) fn config(model: &GgufModel<'_>, special: &Special, losses: &mut Vec<String>) -> Result<Json, Error> {
    let hyper = model.hyper;
    let has = |ending: &str| model.gguf.tensors.iter().any(|tensor| tensor.name.ends_with(ending));
    let biases = [".attn_q.bias", ".attn_k.bias", ".attn_v.bias", ".attn_output.bias"].map(has);
    if biases.contains(&true) && biases.contains(&false) {
        losses.push("some projections of attention have biases, config.json says that all have".to_owned());
    }
    let (class, model_type, activation_key) = match hyper.architecture {
        Architecture::Llama => ("LlamaForCausalLM", "llama", "hidden_act"),
        Architecture::Gemma3 => ("Gemma3ForCausalLM", "gemma3_text", "hidden_activation"),
    };
    let activation = match hyper.activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Gelu => "gelu",
    };
    let mut config = Map::new();
    let mut put = |key: &str, value: Json| config.insert(key.to_owned(), value);
    put("architectures", json!([class]));
    put("model_type", model_type.into());
    put("attention_bias", biases.contains(&true).into());
    put("attention_dropout", 0.0.into());
    for (key, id) in special.named_ids() {
        put(key, id.into());
    }
    put("head_dim", hyper.head_dim.into());
    put(activation_key, activation.into());
    put("hidden_size", hyper.hidden.into());
    put("initializer_range", 0.02.into());
    put("intermediate_size", hyper.intermediate.into());
    put("max_position_embeddings", hyper.context.into());
    put("num_attention_heads", hyper.heads.into());
    put("num_hidden_layers", hyper.layers.into());
    put("num_key_value_heads", hyper.kv_heads.into());
    put("rms_norm_eps", shortest(hyper.norm_epsilon));
    put("rope_scaling", rope::scaling(hyper, model.rope_divisors)?);
    put("rope_theta", shortest(hyper.rope.theta));
    put("tie_word_embeddings", hyper.tied.into());
    put("torch_dtype", torch_dtype(model.dtype).into());
    put("use_cache", true.into());
    put("vocab_size", hyper.vocabulary.into());
    match hyper.architecture {
        Architecture::Llama => {
            put("mlp_bias", has(".ffn_up.bias").into());
        }
        Architecture::Gemma3 => {
            let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
            put("attn_logit_softcapping", Json::Null);
            put("final_logit_softcapping", Json::Null);
            put("layer_types", hyper.sliding.iter().map(kind).collect());
            put("query_pre_attn_scalar", query_scalar(hyper.attention_scale));
            put("rope_local_base_freq", shortest(hyper.rope_sliding.unwrap_or(hyper.rope).theta));
            put("sliding_window", hyper.sliding_window.into());
        }
    }
    Ok(Json::Object(config))
}

/// What the square root is taken of: a whole number, but for rounding.
fn query_scalar(attention_scale: f64) -> Json {
    let scalar = attention_scale.powi(-2);
    let whole = scalar.round();
    if (scalar - whole).abs() < 1e-6 { (whole as i64).into() } else { scalar.into() }
}

/// A number that a file has as float32, with no more digits than that needs.
pub(super) fn shortest(number: f64) -> Json {
    let narrow = number as f32;
    let same = f64::from(narrow).to_bits() == number.to_bits();
    let short = if same { narrow.to_string().parse().unwrap_or(number) } else { number };
    short.into()
}

fn torch_dtype(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        _ => "float32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_tails() {
        assert_eq!(shortest(f64::from(1e-5f32)), json!(1e-5));
        assert_eq!(shortest(1e-6), json!(1e-6), "it was no float32");
        assert_eq!(shortest(100_000.0), json!(100_000.0));
        assert_eq!(query_scalar(256f64.powf(-0.5)), json!(256));
    }
}
