//! `rope_scaling` of a config. A GGUF file stores Llama 3's scaling as divisors of the frequencies;
//! a config stores the parameters from which the divisors were computed.

use architectures::{Architecture, Attention, Rope, RopeScaling};
use import::Error;
use serde_json::{Value as Json, json};

use super::fail;

/// Largest relative difference between a stored and a computed divisor. Both were rounded to
/// float32.
const TOLERANCE: f64 = 1e-5;

/// Returns the value of `rope_scaling`; `null` if nothing is scaled.
///
/// # Errors
/// The divisors are not those of Llama 3's scaling.
pub(super) fn scaling(architecture: &Architecture, divisors: Option<&[f32]>) -> Result<Json, Error> {
    if architecture.blueprint.attentions().filter_map(|attention| attention.rope.as_ref()).any(Rope::is_unusual) {
        return Err(fail("this RoPE scaling cannot be written into a config yet"));
    }
    // A NaN among the divisors must not count as 1, which the comparison ensures.
    let divisors = divisors.filter(|divisors| !divisors.iter().all(|divisor| (divisor - 1.0).abs() <= 1e-6));
    let scaling = match divisors {
        Some(divisors) => full_rope(architecture)
            .and_then(|(rope, head_dim)| llama3(rope, head_dim, divisors))
            .ok_or_else(|| fail("the numbers of `rope_freqs.weight` are not those of Llama 3's RoPE scaling"))?,
        None => architecture.rope_scaling().unwrap_or(RopeScaling::None),
    };
    Ok(match scaling {
        RopeScaling::None => Json::Null,
        RopeScaling::Linear { factor } => json!({"factor": factor, "rope_type": "linear"}),
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => json!({
            "factor": factor,
            "high_freq_factor": high_frequency_factor,
            "low_freq_factor": low_frequency_factor,
            "original_max_position_embeddings": original_context,
            "rope_type": "llama3",
        }),
        RopeScaling::Proportional { .. } | RopeScaling::Yarn { .. } | RopeScaling::LongRope { .. } => {
            return Err(fail("this RoPE scaling cannot be written into a config yet"));
        }
    })
}

/// Returns the `RoPE` of a layer with full attention, and the size of its heads.
fn full_rope(architecture: &Architecture) -> Option<(&Rope, u64)> {
    let of = |attention: &Attention| attention.window.is_none() && attention.rope.is_some();
    let attention = architecture.blueprint.attentions().find(|attention| of(attention))?;
    Some((attention.rope.as_ref()?, attention.head_dim))
}

/// Finds the parameters that give these divisors. The factor is the largest divisor. The other
/// parameters are searched among values of published models: powers of two for the context, and few
/// pairs of frequency factors.
fn llama3(rope: &Rope, head_dim: u64, divisors: &[f32]) -> Option<RopeScaling> {
    let plain = rope.scaled(RopeScaling::None, 1.0).frequencies(head_dim, false);
    if divisors.len() != plain.len() || rope.scaling != RopeScaling::None {
        return None;
    }
    let factor = divisors.iter().copied().fold(1.0f32, f32::max).into();
    let contexts = [8192].into_iter().chain((4..24).map(|power| 1u64 << power));
    let factors = [(1.0, 4.0), (1.0, 2.0), (1.0, 8.0), (1.0, 32.0), (2.0, 4.0), (0.5, 4.0)];
    let candidates = contexts.flat_map(|context| factors.map(|(low, high)| (context, low, high)));
    let mut scalings = candidates.map(|(original_context, low_frequency_factor, high_frequency_factor)| {
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context }
    });
    scalings.find(|scaling| {
        let stretched = rope.scaled(scaling.clone(), 1.0).frequencies(head_dim, false);
        let close = |((plain, stretched), divisor): ((&f64, f64), &f32)| {
            (plain / stretched / f64::from(*divisor) - 1.0).abs() < TOLERANCE
        };
        plain.iter().zip(stretched).zip(divisors).all(close)
    })
}

#[cfg(test)]
mod tests {
    use architectures::{Document, TensorNames, describe};

    use super::*;

    #[test]
    fn only_ones_scale_nothing() {
        let config = br#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256}"#;
        let architecture = describe(Document::Config(config), &TensorNames::default()).expect("a config");
        assert_eq!(scaling(&architecture, Some(&[1.0; 8])).expect("no scaling"), Json::Null);
        assert!(scaling(&architecture, Some(&[f32::NAN; 8])).is_err());
    }

    #[test]
    fn finds_what_the_divisors_came_from() {
        for (theta, head_dim, factor, original_context) in
            [(500_000.0, 128, 8.0, 8192), (500_000.0, 64, 32.0, 8192), (10_000.0, 16, 8.0, 64)]
        {
            let plain = Rope::plain(theta);
            let scaling =
                RopeScaling::Llama3 { factor, low_frequency_factor: 1.0, high_frequency_factor: 4.0, original_context };
            let stretched = plain.scaled(scaling.clone(), 1.0).frequencies(head_dim, false);
            let divisors: Vec<f32> =
                plain.frequencies(head_dim, false).iter().zip(stretched).map(|(a, b)| (a / b) as f32).collect();
            let found = llama3(&plain, head_dim, &divisors).expect("a scaling");
            let again = plain.scaled(found.clone(), 1.0).frequencies(head_dim, false);
            let wanted = plain.scaled(scaling, 1.0).frequencies(head_dim, false);
            assert!(again.iter().zip(wanted).all(|(a, b)| (a / b - 1.0).abs() < TOLERANCE), "{found:?}");
            for wrong in [3.0, f32::NAN] {
                let mut other = divisors.clone();
                other[0] = wrong;
                assert_eq!(llama3(&plain, head_dim, &other), None);
            }
        }
    }
}
