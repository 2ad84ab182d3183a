//! Holds the numbers of a blueprint against one another and against sizes that no model has, so that nothing absurd is
//! allocated and nothing overflows.

use super::{Attention, Blueprint, Gated, Layer, Norm, Residual, Tensor, View};

/// More layers than any model has.
pub(crate) const MAX_LAYERS: u64 = 4096;
/// The longest name of a tensor, in bytes.
const MAX_NAME: usize = 4096;
/// More rows than any tensor has.
const MAX_ROWS: u64 = 1 << 32;

impl Blueprint {
    /// Checks everything.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub(crate) fn check(self) -> Result<Self, String> {
        in_range("vocabulary size", self.vocabulary, 1 << 24)?;
        in_range("hidden size", self.hidden, 1 << 20)?;
        in_range("number of layers", self.layers.len() as u64, MAX_LAYERS)?;
        in_range("context length", self.context, 1 << 40)?;
        positive([self.embedding.scale, self.output.scale].into_iter().flatten())?;
        norm(&self.norm)?;
        self.layers.iter().try_for_each(layer)?;
        names(&self)?;
        Ok(self)
    }
}

fn in_range(what: &str, value: u64, largest: u64) -> Result<(), String> {
    if value == 0 || value > largest {
        return Err(format!("{what} is {value}, expected 1 to {largest}"));
    }
    Ok(())
}

fn positive(mut numbers: impl Iterator<Item = f64>) -> Result<(), String> {
    if numbers.any(|number| !number.is_finite() || number <= 0.0) {
        return Err("a norm epsilon, scale or number of RoPE is not a positive number".to_owned());
    }
    Ok(())
}

fn norm(norm: &Norm) -> Result<(), String> {
    positive([norm.epsilon].into_iter())?;
    if !norm.offset.is_finite() {
        return Err("what is added to the weights of a norm is not a number".to_owned());
    }
    Ok(())
}

fn layer(layer: &Layer) -> Result<(), String> {
    let super::Mixer::Attention(mixer) = &layer.mixer;
    let super::Ffn::Gated(ffn) = &layer.ffn;
    attention(mixer)?;
    gated(ffn)?;
    [&layer.mixer_residual, &layer.ffn_residual].into_iter().try_for_each(residual)
}

fn residual(residual: &Residual) -> Result<(), String> {
    positive(residual.scale.into_iter())?;
    residual.before.iter().chain(&residual.after).try_for_each(norm)
}

fn attention(attention: &Attention) -> Result<(), String> {
    let Attention { heads, kv_heads, head_dim, .. } = *attention;
    in_range("number of attention heads", heads, 1 << 14)?;
    in_range("number of key/value heads", kv_heads, 1 << 14)?;
    in_range("head size", head_dim, 1 << 16)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("{heads} attention heads cannot share {kv_heads} key/value heads evenly"));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(format!("head size is {head_dim}, RoPE needs an even one"));
    }
    if let Some(window) = attention.window {
        in_range("sliding window", window, 1 << 40)?;
    }
    positive([attention.scale].into_iter().chain(attention.rope.iter().flat_map(crate::Rope::numbers)))?;
    attention.query_norm.iter().chain(&attention.key_norm).try_for_each(norm)
}

fn gated(gated: &Gated) -> Result<(), String> {
    in_range("intermediate size", gated.width, 1 << 22)
}

/// Names become keys of messages and maps; they are never paths, but they may be long. Views are held against the tensors
/// where these are.
fn names(blueprint: &Blueprint) -> Result<(), String> {
    let projections = blueprint.layers.iter().flat_map(|layer| {
        let (super::Mixer::Attention(mixer), super::Ffn::Gated(ffn)) = (&layer.mixer, &layer.ffn);
        [&mixer.query, &mixer.key, &mixer.value, &mixer.output, &ffn.gate, &ffn.up, &ffn.down]
    });
    let projections = projections.chain([&blueprint.output.projection]);
    let modules = projections.clone().map(|projection| projection.module.len());
    let weights = projections.flat_map(|projection| [Some(&projection.weight), projection.bias.as_ref()]).flatten();
    let residuals = blueprint.layers.iter().flat_map(|layer| [&layer.mixer_residual, &layer.ffn_residual]);
    let norms = residuals.flat_map(|residual| [&residual.before, &residual.after]);
    let head_norms = blueprint.attentions().flat_map(|attention| [&attention.query_norm, &attention.key_norm]);
    let norms = norms.chain(head_norms).flatten().chain([&blueprint.norm]).map(|norm| &norm.weight);
    let divisors = blueprint.attentions().filter_map(|attention| attention.rope.as_ref()?.divisors.as_ref());
    let tensors: Vec<&Tensor> = weights.chain(norms).chain(divisors).chain([&blueprint.embedding.weight]).collect();
    let too_far = |view: View| match view {
        View::Rows { first, count } => count == 0 || first.checked_add(count).is_none_or(|end| end > MAX_ROWS),
        View::Item { index } => index >= MAX_ROWS,
        View::Whole | View::Transposed => false,
    };
    if let Some(tensor) = tensors.iter().find(|tensor| too_far(tensor.view)) {
        let shown: String = tensor.name.chars().take(60).collect();
        return Err(format!("a part of `{shown}` is {:?}, which no tensor has", tensor.view));
    }
    match tensors.iter().map(|tensor| tensor.name.len()).chain(modules).max() {
        Some(length) if length > MAX_NAME => Err(format!("a tensor's name has {length} bytes, at most {MAX_NAME}")),
        _ => Ok(()),
    }
}
