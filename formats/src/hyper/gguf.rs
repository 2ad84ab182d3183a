//! From GGUF metadata.

use super::{Activation, Architecture, HyperParameters, Rope, RopeLayout, RopeScaling, flags, sliding_but_every};
use crate::{Error, Gguf};

const SOURCE: &str = "GGUF metadata";
/// Every sixth layer of Gemma 3 sees everything; older files have no key for it, and newer ones no need of it.
pub(crate) const GEMMA3_SLIDING_PATTERN: u64 = 6;
/// The base of the frequencies of Gemma 3's sliding layers, where no key says another.
pub(crate) const GEMMA3_SLIDING_THETA: f64 = 10_000.0;

impl HyperParameters {
    /// Reads the keys of an architecture from a GGUF header.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, Error> {
        let name = gguf.text("general.architecture").ok_or_else(|| fail("`general.architecture` is missing"))?;
        match name {
            "llama" => llama(gguf)?.check(SOURCE),
            "gemma3" => gemma3(gguf)?.check(SOURCE),
            other => Err(Architecture::unknown(other)),
        }
    }

    /// What attention scores are multiplied with where the numbers come from a GGUF file, which has no key for it.
    pub(crate) fn gguf_attention_scale(&self) -> f64 {
        /// The 27B model scales by `hidden / heads` instead of the head size; it alone has so many layers.
        const LAYERS_OF_27B: u64 = 62;
        let gemma_27b = self.architecture == Architecture::Gemma3 && self.layers == LAYERS_OF_27B;
        let query_scalar = if gemma_27b { self.hidden as f64 / self.heads as f64 } else { self.head_dim as f64 };
        query_scalar.powf(-0.5)
    }
}

fn fail(reason: impl Into<String>) -> Error {
    Error::Config { source_name: SOURCE, reason: reason.into() }
}

fn llama(gguf: &Gguf<'_>) -> Result<HyperParameters, Error> {
    let base = base(gguf, Architecture::Llama, Activation::Silu)?;
    if gguf.unsigned("llama.expert_count").is_some_and(|experts| experts > 0) {
        return Err(Architecture::unknown("llama with experts"));
    }
    // Files of this family have the rows of q and k permuted for interleaved pairs.
    Ok(HyperParameters { rope_layout: RopeLayout::Interleaved, ..base })
}

fn gemma3(gguf: &Gguf<'_>) -> Result<HyperParameters, Error> {
    let base = base(gguf, Architecture::Gemma3, Activation::GeluTanh)?;
    let pattern = gguf.unsigned("gemma3.attention.sliding_window_pattern").filter(|n| *n > 0);
    let pattern = pattern.unwrap_or(GEMMA3_SLIDING_PATTERN);
    let local_theta = gguf.float("gemma3.rope.freq_base_swa").unwrap_or(GEMMA3_SLIDING_THETA);
    Ok(HyperParameters {
        attention_scale: base.gguf_attention_scale(),
        embedding_scale: Some((base.hidden as f64).sqrt()),
        rope_sliding: Some(Rope { theta: local_theta, scaling: RopeScaling::None }),
        sliding_window: Some(gguf.unsigned("gemma3.attention.sliding_window").unwrap_or(1024)),
        sliding: sliding_but_every(pattern, base.layers),
        ..base
    })
}

fn base(gguf: &Gguf<'_>, architecture: Architecture, activation: Activation) -> Result<HyperParameters, Error> {
    let name = architecture.name();
    let unsigned = |key: &str| gguf.unsigned(&format!("{name}.{key}"));
    let need =
        |key: &str| unsigned(key).ok_or_else(|| fail(format!("`{name}.{key}` is missing or not a whole number")));
    let heads = need("attention.head_count")?;
    let hidden = need("embedding_length")?;
    let layers = need("block_count")?;
    let embedding = gguf.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let rows = embedding.and_then(|tensor| tensor.dims.get(1).copied());
    let head_dim = unsigned("attention.key_length").or_else(|| hidden.checked_div(heads)).unwrap_or(0);
    if let Some(rotated) = unsigned("rope.dimension_count").filter(|rotated| *rotated != head_dim) {
        return Err(fail(format!("RoPE rotates {rotated} of {head_dim} elements; a part of a head cannot be run yet")));
    }
    Ok(HyperParameters {
        architecture,
        vocabulary: rows.or_else(|| unsigned("vocab_size")).ok_or_else(|| fail("there is no `token_embd.weight`"))?,
        hidden,
        intermediate: need("feed_forward_length")?,
        layers,
        heads,
        kv_heads: unsigned("attention.head_count_kv").unwrap_or(heads),
        head_dim,
        context: need("context_length")?,
        norm_epsilon: gguf.float(&format!("{name}.attention.layer_norm_rms_epsilon")).unwrap_or(1e-5),
        norm_offset: 0.0,
        activation,
        attention_scale: (head_dim as f64).powf(-0.5),
        embedding_scale: None,
        tied: !gguf.tensors.iter().any(|tensor| tensor.name == "output.weight"),
        rope_layout: RopeLayout::Half,
        rope: Rope {
            theta: gguf.float(&format!("{name}.rope.freq_base")).unwrap_or(10_000.0),
            scaling: scaling(gguf, name)?,
        },
        rope_sliding: None,
        sliding_window: None,
        sliding: flags(layers, |_| false),
    })
}

/// How frequencies are scaled, in llama.cpp's order: a factor without a type means linear scaling, and the older key
/// counts where there is no factor.
fn scaling(gguf: &Gguf<'_>, name: &str) -> Result<RopeScaling, Error> {
    let number = |key: &str| gguf.float(&format!("{name}.rope.{key}"));
    let factor = number("scaling.factor").or_else(|| number("scale_linear")).filter(|factor| *factor > 0.0);
    match gguf.text(&format!("{name}.rope.scaling.type")) {
        // Llama 3's scaling is in the file as a tensor of divisors, `rope_freqs.weight`, and has no type.
        None => Ok(match factor.filter(|factor| (factor - 1.0).abs() > f64::EPSILON) {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        }),
        Some("none") => Ok(RopeScaling::None),
        Some("linear") => {
            let factor = factor.ok_or_else(|| fail(format!("`{name}.rope.scaling.factor` is missing")))?;
            Ok(RopeScaling::Linear { factor })
        }
        Some(other) => Err(fail(format!("rope scaling `{other}` cannot be run yet, expected none or linear"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{OwnedValue, write_header};

    #[test]
    fn a_factor_without_a_type_is_linear() {
        let key = |name: &str, value: OwnedValue| (format!("llama.rope.{name}"), value);
        let (factor, older) = (key("scaling.factor", 4.0f32.into()), key("scale_linear", 2.0f32.into()));
        let (one, none) = (key("scaling.factor", 1.0f32.into()), key("scaling.type", "none".into()));
        let linear = |factor| RopeScaling::Linear { factor };
        for (keys, expected) in [
            (vec![], RopeScaling::None),
            (vec![factor.clone(), older.clone()], linear(4.0)),
            (vec![older.clone()], linear(2.0)),
            (vec![one, older.clone()], RopeScaling::None),
            (vec![none, older, factor], RopeScaling::None),
        ] {
            let header = write_header(&keys, &[]).expect("a header").bytes;
            let gguf = Gguf::parse(&header).expect("it is read");
            assert_eq!(scaling(&gguf, "llama").expect("a scaling"), expected, "{keys:?}");
        }
    }
}
