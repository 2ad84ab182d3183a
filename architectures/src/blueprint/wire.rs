//! Serialized form of a blueprint, for notes of the index and for runners. The parts are serialized
//! directly. Deserialization checks the whole blueprint before it returns it.

use serde::Deserialize;

use super::{Blueprint, EmbedderLayer, Embedding, Layer, Norm, Output, Pictures, Scorer, Streams};

/// Blueprint that is not checked yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireBlueprint {
    vocabulary: u64,
    hidden: u64,
    context: u64,
    causal: bool,
    embedding: Embedding,
    streams: Option<Streams>,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    embedder: Vec<EmbedderLayer>,
    output: Option<Output>,
    scorer: Option<Scorer>,
    pictures: Option<Pictures>,
}

impl TryFrom<WireBlueprint> for Blueprint {
    type Error = String;

    fn try_from(wire: WireBlueprint) -> Result<Self, String> {
        let WireBlueprint {
            vocabulary,
            hidden,
            context,
            causal,
            embedding,
            streams,
            layers,
            norm,
            embedder,
            output,
            scorer,
            pictures,
        } = wire;
        let read = Self {
            vocabulary,
            hidden,
            context,
            causal,
            embedding,
            streams,
            layers,
            norm,
            embedder,
            output,
            scorer,
            pictures,
        };
        read.check()
    }
}

#[cfg(test)]
mod tests;
