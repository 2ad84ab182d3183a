//! Serialized form of a blueprint, for notes of the index and for runners. The parts are serialized
//! directly. Deserialization checks the whole blueprint before it returns it.

use serde::{Deserialize, Serialize};

use super::{Blueprint, Embedding, Layer, Norm, Output, Scorer, Tensor, View};

/// Blueprint that is not checked yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireBlueprint {
    vocabulary: u64,
    hidden: u64,
    context: u64,
    causal: bool,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    output: Option<Output>,
    scorer: Option<Scorer>,
}

impl TryFrom<WireBlueprint> for Blueprint {
    type Error = String;

    fn try_from(wire: WireBlueprint) -> Result<Self, String> {
        let WireBlueprint { vocabulary, hidden, context, causal, embedding, layers, norm, output, scorer } = wire;
        Self { vocabulary, hidden, context, causal, embedding, layers, norm, output, scorer }.check()
    }
}

/// Name of a tensor, or a name with a view.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum WireTensor {
    Whole(String),
    Part { name: String, view: View },
}

impl From<Tensor> for WireTensor {
    fn from(Tensor { name, view }: Tensor) -> Self {
        if view.is_whole() { Self::Whole(name) } else { Self::Part { name, view } }
    }
}

impl From<WireTensor> for Tensor {
    fn from(wire: WireTensor) -> Self {
        match wire {
            WireTensor::Whole(name) => Self::named(name),
            WireTensor::Part { name, view } => Self { name, view },
        }
    }
}

#[cfg(test)]
mod tests;
