//! How a blueprint is written down: for notes of the index and for runners. Nobody else sees these types, and what is read
//! through them is checked.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    Activation, Attention, Blueprint, Embedding, Ffn, Gated, HeadLayout, Layer, Mixer, Norm, Output, Projection,
    Residual, Tensor, View,
};
use crate::{Rope, RopeScaling};

impl Serialize for Blueprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WireBlueprint::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Blueprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        WireBlueprint::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireBlueprint {
    vocabulary: u64,
    hidden: u64,
    context: u64,
    embedding: WireTensor,
    embedding_scale: Option<f64>,
    layers: Vec<WireLayer>,
    norm: WireNorm,
    output: WireProjection,
    output_scale: Option<f64>,
}

/// A name, or a name with what of it is meant.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WireTensor {
    Whole(String),
    Part { name: String, view: WireView },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireView {
    Rows { first: u64, count: u64 },
    Item { index: u64 },
    Transposed,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLayer {
    mixer: WireMixer,
    mixer_residual: WireResidual,
    ffn: WireFfn,
    ffn_residual: WireResidual,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WireMixer {
    Attention(Box<WireAttention>),
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WireFfn {
    Gated(Box<WireGated>),
}

#[derive(Serialize, Deserialize)]
struct WireAttention {
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    layout: String,
    scale: f64,
    window: Option<u64>,
    rope: Option<WireRope>,
    query: WireProjection,
    key: WireProjection,
    value: WireProjection,
    output: WireProjection,
    query_norm: Option<WireNorm>,
    key_norm: Option<WireNorm>,
}

#[derive(Serialize, Deserialize)]
struct WireGated {
    width: u64,
    activation: String,
    gate: WireProjection,
    up: WireProjection,
    down: WireProjection,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireResidual {
    before: Option<WireNorm>,
    after: Option<WireNorm>,
    scale: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireProjection {
    module: String,
    weight: WireTensor,
    bias: Option<WireTensor>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireNorm {
    weight: WireTensor,
    epsilon: f64,
    offset: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRope {
    theta: f64,
    scaling: WireScaling,
    divisors: Option<WireTensor>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WireScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_frequency_factor: f64, high_frequency_factor: f64, original_context: u64 },
}

impl From<&Blueprint> for WireBlueprint {
    fn from(blueprint: &Blueprint) -> Self {
        Self {
            vocabulary: blueprint.vocabulary,
            hidden: blueprint.hidden,
            context: blueprint.context,
            embedding: (&blueprint.embedding.weight).into(),
            embedding_scale: blueprint.embedding.scale,
            layers: blueprint.layers.iter().map(WireLayer::from).collect(),
            norm: (&blueprint.norm).into(),
            output: (&blueprint.output.projection).into(),
            output_scale: blueprint.output.scale,
        }
    }
}

impl TryFrom<WireBlueprint> for Blueprint {
    type Error = String;

    fn try_from(wire: WireBlueprint) -> Result<Self, String> {
        let blueprint = Self {
            vocabulary: wire.vocabulary,
            hidden: wire.hidden,
            context: wire.context,
            embedding: Embedding { weight: wire.embedding.into(), scale: wire.embedding_scale },
            layers: wire.layers.into_iter().map(Layer::try_from).collect::<Result<_, _>>()?,
            norm: wire.norm.into(),
            output: Output { projection: wire.output.into(), scale: wire.output_scale },
        };
        blueprint.check()
    }
}

impl From<&Tensor> for WireTensor {
    fn from(tensor: &Tensor) -> Self {
        let name = tensor.name.clone();
        let view = match tensor.view {
            View::Whole => return Self::Whole(name),
            View::Rows { first, count } => WireView::Rows { first, count },
            View::Item { index } => WireView::Item { index },
            View::Transposed => WireView::Transposed,
        };
        Self::Part { name, view }
    }
}

impl From<WireTensor> for Tensor {
    fn from(wire: WireTensor) -> Self {
        let (name, view) = match wire {
            WireTensor::Whole(name) => (name, View::Whole),
            WireTensor::Part { name, view: WireView::Rows { first, count } } => (name, View::Rows { first, count }),
            WireTensor::Part { name, view: WireView::Item { index } } => (name, View::Item { index }),
            WireTensor::Part { name, view: WireView::Transposed } => (name, View::Transposed),
        };
        Self { name, view }
    }
}

impl From<&Layer> for WireLayer {
    fn from(layer: &Layer) -> Self {
        let (Mixer::Attention(attention), Ffn::Gated(gated)) = (&layer.mixer, &layer.ffn);
        Self {
            mixer: WireMixer::Attention(Box::new(attention.as_ref().into())),
            mixer_residual: (&layer.mixer_residual).into(),
            ffn: WireFfn::Gated(Box::new(gated.as_ref().into())),
            ffn_residual: (&layer.ffn_residual).into(),
        }
    }
}

impl TryFrom<WireLayer> for Layer {
    type Error = String;

    fn try_from(wire: WireLayer) -> Result<Self, String> {
        let (WireMixer::Attention(attention), WireFfn::Gated(gated)) = (wire.mixer, wire.ffn);
        Ok(Self {
            mixer: Mixer::Attention(Box::new((*attention).try_into()?)),
            mixer_residual: wire.mixer_residual.into(),
            ffn: Ffn::Gated(Box::new((*gated).try_into()?)),
            ffn_residual: wire.ffn_residual.into(),
        })
    }
}

impl From<&Attention> for WireAttention {
    fn from(attention: &Attention) -> Self {
        Self {
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            layout: attention.layout.name().to_owned(),
            scale: attention.scale,
            window: attention.window,
            rope: attention.rope.as_ref().map(WireRope::from),
            query: (&attention.query).into(),
            key: (&attention.key).into(),
            value: (&attention.value).into(),
            output: (&attention.output).into(),
            query_norm: attention.query_norm.as_ref().map(WireNorm::from),
            key_norm: attention.key_norm.as_ref().map(WireNorm::from),
        }
    }
}

impl TryFrom<WireAttention> for Attention {
    type Error = String;

    fn try_from(wire: WireAttention) -> Result<Self, String> {
        let layout = HeadLayout::parse(&wire.layout);
        Ok(Self {
            heads: wire.heads,
            kv_heads: wire.kv_heads,
            head_dim: wire.head_dim,
            layout: layout.ok_or_else(|| format!("the layout of heads `{}` is not known", wire.layout))?,
            scale: wire.scale,
            window: wire.window,
            rope: wire.rope.map(Rope::from),
            query: wire.query.into(),
            key: wire.key.into(),
            value: wire.value.into(),
            output: wire.output.into(),
            query_norm: wire.query_norm.map(Norm::from),
            key_norm: wire.key_norm.map(Norm::from),
        })
    }
}

impl From<&Gated> for WireGated {
    fn from(gated: &Gated) -> Self {
        Self {
            width: gated.width,
            activation: gated.activation.name().to_owned(),
            gate: (&gated.gate).into(),
            up: (&gated.up).into(),
            down: (&gated.down).into(),
        }
    }
}

impl TryFrom<WireGated> for Gated {
    type Error = String;

    fn try_from(wire: WireGated) -> Result<Self, String> {
        let activation = Activation::parse(&wire.activation);
        Ok(Self {
            width: wire.width,
            activation: activation.ok_or_else(|| format!("the activation `{}` is not known", wire.activation))?,
            gate: wire.gate.into(),
            up: wire.up.into(),
            down: wire.down.into(),
        })
    }
}

impl From<&Residual> for WireResidual {
    fn from(residual: &Residual) -> Self {
        let norm = |norm: &Option<Norm>| norm.as_ref().map(WireNorm::from);
        Self { before: norm(&residual.before), after: norm(&residual.after), scale: residual.scale }
    }
}

impl From<WireResidual> for Residual {
    fn from(wire: WireResidual) -> Self {
        Self { before: wire.before.map(Norm::from), after: wire.after.map(Norm::from), scale: wire.scale }
    }
}

impl From<&Projection> for WireProjection {
    fn from(projection: &Projection) -> Self {
        let Projection { module, weight, bias } = projection;
        Self { module: module.clone(), weight: weight.into(), bias: bias.as_ref().map(WireTensor::from) }
    }
}

impl From<WireProjection> for Projection {
    fn from(wire: WireProjection) -> Self {
        Self { module: wire.module, weight: wire.weight.into(), bias: wire.bias.map(Tensor::from) }
    }
}

impl From<&Norm> for WireNorm {
    fn from(norm: &Norm) -> Self {
        Self { weight: (&norm.weight).into(), epsilon: norm.epsilon, offset: norm.offset }
    }
}

impl From<WireNorm> for Norm {
    fn from(wire: WireNorm) -> Self {
        Self { weight: wire.weight.into(), epsilon: wire.epsilon, offset: wire.offset }
    }
}

impl From<&Rope> for WireRope {
    fn from(rope: &Rope) -> Self {
        let scaling = match rope.scaling {
            RopeScaling::None => WireScaling::None,
            RopeScaling::Linear { factor } => WireScaling::Linear { factor },
            RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
                WireScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context }
            }
        };
        let divisors = rope.divisors.as_ref().map(WireTensor::from);
        Self { theta: rope.theta, scaling, divisors }
    }
}

impl From<WireRope> for Rope {
    fn from(wire: WireRope) -> Self {
        let scaling = match wire.scaling {
            WireScaling::None => RopeScaling::None,
            WireScaling::Linear { factor } => RopeScaling::Linear { factor },
            WireScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context } => {
                RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context }
            }
        };
        Self { theta: wire.theta, scaling, divisors: wire.divisors.map(Tensor::from) }
    }
}

#[cfg(test)]
mod tests;
