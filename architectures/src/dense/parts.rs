//! Parts of blueprints that families without [`Dense`](super::Dense) use too.

use crate::TensorNames;
use crate::blueprint::{Attention, Clamps, DecayRate, HeadLayout, Norm, NormKind, NormedPart, Projection, Tensor};
use crate::rope::Divisors;

/// Returns the divisors of frequencies of a file. Llama 3's take precedence over divisors that
/// depend on the context.
pub(crate) fn divisors(names: &TensorNames, original_context: Option<u64>) -> Option<Divisors> {
    const SAME: &str = "model.rope_freqs.weight";
    const BY_CONTEXT: [&str; 2] = ["model.rope_factors_short.weight", "model.rope_factors_long.weight"];
    if names.has(SAME) {
        return Some(Divisors::Same(Tensor::named(SAME)));
    }
    let [short, long] = BY_CONTEXT.map(Tensor::named);
    let original_context = original_context.filter(|_| BY_CONTEXT.iter().all(|name| names.has(name)))?;
    Some(Divisors::ByContext { short, long, original_context })
}

/// Returns a projection, with a bias if the model has one.
pub(crate) fn projection(names: &TensorNames, module: &str) -> Projection {
    let bias = format!("{module}.bias");
    Projection {
        module: module.to_owned(),
        weight: Tensor::named(format!("{module}.weight")),
        bias: names.has(&bias).then(|| Tensor::named(bias)),
        clamps: None,
    }
}

/// Returns the bounds of a projection, if the model has them.
pub(crate) fn clamps(names: &TensorNames, module: &str) -> Option<Box<Clamps>> {
    let tensor = |kind: &str| Tensor::named(format!("{module}.{kind}"));
    names.has(&format!("{module}.input_min")).then(|| {
        Box::new(Clamps {
            input: ["input_min", "input_max"].map(tensor),
            output: ["output_min", "output_max"].map(tensor),
        })
    })
}

/// Returns a layer norm, with a bias if the model has one.
pub(crate) fn layer_norm(names: &TensorNames, module: &str, epsilon: f64) -> Norm {
    let bias = format!("{module}.bias");
    Norm {
        kind: NormKind::Layer,
        weight: Some(Tensor::named(format!("{module}.weight"))),
        bias: names.has(&bias).then(|| Tensor::named(bias)),
        epsilon,
        offset: 0.0,
    }
}

/// Returns an RMS norm whose weights are all 1.
pub(crate) fn unweighted_norm(epsilon: f64) -> Norm {
    Norm { kind: NormKind::Rms, weight: None, bias: None, epsilon, offset: 0.0 }
}

/// Returns the decay rate of a recurrent mixer: `A_log` of folders, or `A` of GGUF files.
pub(crate) fn decay_rate(names: &TensorNames, module: &str) -> DecayRate {
    let log = format!("{module}.A_log");
    if names.has(&log) {
        DecayRate::Log(Tensor::named(log))
    } else {
        DecayRate::Negative(Tensor::named(format!("{module}.A")))
    }
}

/// Returns attention without grouped heads, windows or `RoPE`, from its query, key, value and
/// output projections.
pub(crate) fn attention(heads: u64, head_dim: u64, [query, key, value, output]: [Projection; 4]) -> Attention {
    Attention {
        heads,
        kv_heads: heads,
        head_dim,
        value_dim: head_dim,
        layout: HeadLayout::Half,
        scale: (head_dim as f64).powf(-0.5),
        soft_cap: None,
        window: None,
        chunk: None,
        rope: None,
        second_rope: None,
        has_causal_pictures: false,
        query,
        key,
        value,
        reads_layer: None,
        output,
        clip: None,
        normed: NormedPart::Head,
        norms_follow_rope: false,
        query_norm: None,
        key_norm: None,
        value_norm: None,
        output_norm: None,
        query_growth: None,
        position_bias: None,
        sinks: None,
        gate: None,
        indexer: None,
    }
}
