//! `config.json`, in the classic layout that every version of transformers reads.

use architectures::Fact;
use formats::Dtype;
use import::Error;
use serde_json::{Map, Value as Json, json};
use vocabulary::Vocabulary;

use super::{GgufModel, fail, rope, special};

/// GGUF keys of numbers and their names in configs.
const FIELDS: [(&str, &str); 10] = [
    ("attention.key_length", "head_dim"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("context_length", "max_position_embeddings"),
    ("attention.head_count", "num_attention_heads"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("rope.freq_base", "rope_theta"),
    ("vocab_size", "vocab_size"),
];

/// Builds the `config.json`.
///
/// # Errors
/// No `RoPE` scaling of a config gives the `RoPE` divisors, or layers have different activations.
pub(super) fn config(
    model: &GgufModel<'_>,
    vocabulary: Option<&Vocabulary>,
    losses: &mut Vec<String>,
) -> Result<Json, Error> {
    let (architecture, form) = (model.architecture, &model.architecture.family.hugging_face);
    let blueprint = &architecture.blueprint;
    note_biases(model, losses);
    let mut activations = blueprint.gated().map(|gated| gated.activation);
    let activation = activations.next().ok_or_else(|| fail("the model has no layers"))?;
    if activations.any(|other| other != activation) {
        return Err(fail("layers have different activations, a config has one"));
    }
    let mut config = Map::new();
    let mut put = |key: &str, value: Json| config.insert(key.to_owned(), value);
    put("architectures", json!([form.class]));
    put("model_type", form.model_type.into());
    put("attention_dropout", 0.0.into());
    for (key, id) in vocabulary.into_iter().flat_map(special::named_ids) {
        put(key, id.into());
    }
    put(form.activation_key, activation.name().into());
    put("initializer_range", 0.02.into());
    let facts = architecture.facts();
    for (key, field) in FIELDS {
        match facts.iter().find(|(own, _)| *own == key) {
            Some((_, Fact::Unsigned(number))) => drop(put(field, (*number).into())),
            Some((_, Fact::Float(number))) => drop(put(field, shortest(*number))),
            None => {}
        }
    }
    put("rope_scaling", rope::scaling(architecture, model.rope_divisors)?);
    put("tie_word_embeddings", blueprint.tied().into());
    put("torch_dtype", torch_dtype(model.dtype).into());
    put("use_cache", true.into());
    for (key, value) in (form.fields)(blueprint, &|ending| has(model, ending)) {
        put(key, value.as_f64().filter(|_| value.is_f64()).map_or(value, shortest));
    }
    Ok(Json::Object(config))
}

/// True if the model has a tensor whose canonical name ends with `ending`.
fn has(model: &GgufModel<'_>, ending: &str) -> bool {
    let architecture = model.architecture.family.gguf.architecture;
    let mut names = model.gguf.tensors.iter().map(|tensor| architectures::names::canonical(architecture, tensor.name));
    names.any(|name| name.ends_with(ending))
}

/// Reports a loss if only some attention projections have biases: `attention_bias` of a config
/// applies to all of them.
fn note_biases(model: &GgufModel<'_>, losses: &mut Vec<String>) {
    let says = (model.architecture.family.hugging_face.fields)(&model.architecture.blueprint, &|_| true);
    let all = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|module| has(model, &format!(".{module}.bias")));
    if says.iter().any(|(key, _)| *key == "attention_bias") && all.contains(&true) && all.contains(&false) {
        losses.push("some projections of attention have biases, config.json says that all have".to_owned());
    }
}

/// Returns a number that the file stores as float32, with no more digits than float32 needs.
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
    }
}
