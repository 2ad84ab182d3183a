//! Facts of a model that its `config.json` cannot express. The written config is read back and
//! compared with the model: a GGUF file can have keys for which the family's class has no field.

use architectures::{Attention, Blueprint, Document, describe, names};
use import::Error;
use serde_json::Value as Json;

use super::{GgufModel, fail};

/// Largest relative difference of two numbers that count as equal, because GGUF stores float32.
const TOLERANCE: f64 = 1e-6;

/// Reports each value that a reader of the config would compute differently, as a loss.
///
/// # Errors
/// The config cannot be read back.
pub(super) fn note(model: &GgufModel<'_>, config: &Json, losses: &mut Vec<String>) -> Result<(), Error> {
    let architecture = model.architecture.family.gguf.architecture;
    let tensors = model.gguf.tensors.iter().map(|tensor| names::canonical(architecture, tensor.name)).collect();
    let read = describe(Document::Config(config.to_string().as_bytes()), &tensors).map_err(fail)?;
    let (own, other) = (&model.architecture.blueprint, &read.blueprint);
    let differs = |of: &dyn Fn(&Attention, &Attention) -> bool| {
        own.attentions().zip(other.attentions()).any(|(own, other)| !of(own, other))
    };
    let theta = |attention: &Attention| attention.rope.as_ref().map(|rope| rope.theta);
    for (what, differs) in [
        ("how attention scores are scaled", differs(&|own, other| same(Some(own.scale), Some(other.scale)))),
        ("which layers slide, and how far", differs(&|own, other| own.window == other.window)),
        ("how positions are rotated", differs(&|own, other| same(theta(own), theta(other)))),
        (
            "what embeddings, layers or logits are multiplied by",
            !scales(own).zip(scales(other)).all(|(a, b)| same(a, b)),
        ),
    ] {
        if differs {
            let class = model.architecture.family.hugging_face.class;
            losses.push(format!("config.json of {class} cannot express {what} in this model"));
        }
    }
    Ok(())
}

fn scales(blueprint: &Blueprint) -> impl Iterator<Item = Option<f64>> {
    let layers = blueprint.layers.iter().flat_map(|layer| [layer.mixer_residual.scale, layer.ffn_residual.scale]);
    let output = blueprint.output.as_ref().and_then(|output| output.scale);
    [blueprint.embedding.scale, output].into_iter().chain(layers)
}

/// True if two values are equal up to rounding; a missing value counts as 1.
fn same(a: Option<f64>, b: Option<f64>) -> bool {
    let (a, b) = (a.unwrap_or(1.0), b.unwrap_or(1.0));
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
}
