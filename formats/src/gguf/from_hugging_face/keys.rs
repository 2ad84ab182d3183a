//! The keys of an architecture's numbers.

use super::HuggingFaceModel;
use crate::gguf::OwnedValue;
use crate::hyper::{Activation, Architecture, GEMMA3_SLIDING_PATTERN, GEMMA3_SLIDING_THETA, Rope, RopeScaling};
use crate::{Error, GgmlType, HyperParameters};

type Key = (String, OwnedValue);

/// Keys of the model in general and of its architecture.
///
/// # Errors
/// A number that GGUF cannot say for the architecture, or that does not fit.
pub(super) fn keys(model: &HuggingFaceModel<'_>) -> Result<Vec<Key>, Error> {
    let hyper = model.hyper;
    let architecture = hyper.architecture.name();
    let general = |key: &str, text: &str| (format!("general.{key}"), OwnedValue::from(text));
    let mut keys = vec![general("architecture", architecture), general("type", "model"), general("name", model.name)];
    let own = |key: &str| format!("{architecture}.{key}");
    for (key, number) in [
        ("block_count", hyper.layers),
        ("context_length", hyper.context),
        ("embedding_length", hyper.hidden),
        ("feed_forward_length", hyper.intermediate),
        ("attention.head_count", hyper.heads),
        ("attention.head_count_kv", hyper.kv_heads),
        ("attention.key_length", hyper.head_dim),
        ("attention.value_length", hyper.head_dim),
        ("rope.dimension_count", hyper.head_dim),
        ("vocab_size", hyper.vocabulary),
    ] {
        let number = u32::try_from(number).map_err(|_| fail(format!("`{key}` would be {number}, more than 2^32")))?;
        keys.push((own(key), number.into()));
    }
    keys.push((own("rope.freq_base"), (hyper.rope.theta as f32).into()));
    keys.push((own("attention.layer_norm_rms_epsilon"), (hyper.norm_epsilon as f32).into()));
    if let RopeScaling::Linear { factor } = hyper.rope.scaling {
        keys.push((own("rope.scaling.type"), "linear".into()));
        keys.push((own("rope.scaling.factor"), (factor as f32).into()));
    }
    match hyper.architecture {
        Architecture::Llama => llama(hyper)?,
        Architecture::Gemma3 => keys.extend(gemma3(hyper)?),
    }
    if let Some(number) = model.kind.and_then(file_type) {
        keys.push(("general.file_type".to_owned(), number.into()));
    }
    Ok(keys)
}

/// Readers of this architecture know one activation and no sliding layers.
fn llama(hyper: &HyperParameters) -> Result<(), Error> {
    if hyper.activation != Activation::Silu {
        return Err(fail(format!(
            "the activation is {:?}, a GGUF file of this architecture means SiLU",
            hyper.activation
        )));
    }
    if hyper.sliding.contains(&true) {
        return Err(fail("layers slide, a GGUF file of this architecture cannot say so".to_owned()));
    }
    Ok(())
}

fn gemma3(hyper: &HyperParameters) -> Result<Vec<Key>, Error> {
    if hyper.activation != Activation::GeluTanh {
        let activation = hyper.activation;
        return Err(fail(format!(
            "the activation is {activation:?}, a GGUF file of this architecture means GELU (tanh)"
        )));
    }
    if matches!(hyper.rope.scaling, RopeScaling::Llama3 { .. }) {
        return Err(fail("Llama 3's RoPE scaling cannot be said for this architecture".to_owned()));
    }
    let mut keys = Vec::new();
    if let Some(window) = hyper.sliding_window {
        let window = u32::try_from(window).map_err(|_| fail(format!("a sliding window of {window} tokens")))?;
        keys.push(("gemma3.attention.sliding_window".to_owned(), window.into()));
    }
    let pattern = sliding_pattern(&hyper.sliding)
        .ok_or_else(|| fail("which layers slide follows no pattern that GGUF can say".to_owned()))?;
    if pattern != GEMMA3_SLIDING_PATTERN {
        keys.push(("gemma3.attention.sliding_window_pattern".to_owned(), (pattern as u32).into()));
    }
    match hyper.rope_sliding.unwrap_or(hyper.rope) {
        Rope { theta, scaling: RopeScaling::None } if (theta - GEMMA3_SLIDING_THETA).abs() < f64::EPSILON => {}
        Rope { theta, scaling: RopeScaling::None } => {
            keys.push(("gemma3.rope.freq_base_swa".to_owned(), (theta as f32).into()));
        }
        _ => return Err(fail("the RoPE of sliding layers is scaled, which GGUF cannot say".to_owned())),
    }
    Ok(keys)
}

/// The `n` for which every `n`-th layer does not slide and all others do. Where there are too few layers to tell, the
/// usual one is preferred.
fn sliding_pattern(sliding: &[bool]) -> Option<u64> {
    let fits = |n: u64| (1..).zip(sliding).all(|(layer, slides)| *slides == (layer % n != 0));
    let usual = [GEMMA3_SLIDING_PATTERN].into_iter();
    usual.chain(1..=sliding.len() as u64 + 1).find(|n| fits(*n))
}

/// The number in `general.file_type` for files that are mostly of that type; `enum llama_ftype` of llama.cpp's `llama.h`.
pub fn file_type(kind: GgmlType) -> Option<u32> {
    Some(match kind {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q4_1 => 3,
        GgmlType::Q8_0 => 7,
        GgmlType::Q5_0 => 8,
        GgmlType::Q5_1 => 9,
        GgmlType::Q2_K => 10,
        GgmlType::Q3_K => 12,
        GgmlType::Q4_K => 15,
        GgmlType::Q5_K => 17,
        GgmlType::Q6_K => 18,
        GgmlType::IQ4_NL => 25,
        GgmlType::IQ4_XS => 30,
        GgmlType::BF16 => 32,
        _ => return None,
    })
}

fn fail(reason: String) -> Error {
    Error::Config { source_name: "hyper-parameters for GGUF", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_pattern() {
        let layers = |n: u64, pattern: u64| (1..=n).map(|layer| layer % pattern != 0).collect::<Vec<bool>>();
        for (sliding, expect) in [
            (layers(12, 6), Some(6)),
            (layers(4, 3), Some(3)),
            (layers(4, 6), Some(6)),
            (layers(7, 1), Some(1)),
            (vec![false, true, true], None),
        ] {
            assert_eq!(sliding_pattern(&sliding), expect, "{sliding:?}");
        }
    }
}
