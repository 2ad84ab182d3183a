//! The layers that decoders are made of. They depend neither on an architecture nor on a backend.

mod attention;
mod block_indexer;
mod compressed_attention;
mod compressor;
mod delta_net;
pub(crate) mod experts;
mod ffn;
mod gated;
mod indexer;
mod latent;
mod learned_residual;
mod linear;
mod linear_attention;
mod ngrams;
mod plain;
mod residual;
mod router;
mod selective_scan;
mod shared_expert;
mod short_conv;
mod state_space;
mod streams;
mod token_input;

use anyhow::{Context, Result};

use crate::backend::{Backend, StageSequences};
use crate::weights::Weights;
use attention::Attention;
use compressed_attention::CompressedAttention;
use delta_net::DeltaNet;
pub(crate) use ffn::Ffn;
use latent::Latent;
pub(crate) use learned_residual::LearnedResidual;
use linear_attention::LinearAttention;
pub(crate) use ngrams::NgramInput;
pub(crate) use residual::Residual;
use selective_scan::SelectiveScan;
use short_conv::ShortConv;
use state_space::StateSpace;
pub(crate) use streams::{LayerStreams, Streams};
pub(crate) use token_input::TokenInput;

/// Data that all layers of a pass share.
pub(crate) struct Pass<'a, B: Backend> {
    pub(crate) backend: &'a B,
    /// Rotary angles of the pass's tokens, for each distinct rotary embedding.
    pub(crate) angles: &'a [B::Angles],
}

/// The tokens of a pass, as a layer sees them.
#[derive(Debug)]
pub(crate) struct LayerTokens<'a, B: Backend> {
    /// Number of tokens.
    pub(crate) count: usize,
    /// The numbers that the layer reads of each token besides the stream: its embedding of the
    /// token or of n-grams, or the indexes of the token's experts.
    pub(crate) own: Option<&'a B::Act>,
}

impl<'a, B: Backend> LayerTokens<'a, B> {
    /// Returns the numbers that the layer reads of each token.
    pub(crate) fn own(&self) -> Result<&'a B::Act> {
        self.own.context("invariant: the layer reads numbers of tokens")
    }
}

/// The part of a layer that mixes positions.
#[derive(Debug)]
pub(crate) enum Mixer<B: Backend> {
    Attention(Box<Attention<B>>),
    Latent(Latent<B>),
    Compressed(CompressedAttention<B>),
    DeltaNet(DeltaNet<B>),
    ShortConv(ShortConv<B>),
    StateSpace(StateSpace<B>),
    SelectiveScan(SelectiveScan<B>),
    LinearAttention(LinearAttention<B>),
}

/// The sources from which the layers of a decoder are loaded.
pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) weights: &'a Weights,
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    pub(crate) angles: LayerAngles,
    /// Width of the layer's own embedding; 0 without one.
    pub(crate) token_input: usize,
    /// The residual streams; `None` if there is one.
    pub(crate) streams: Option<&'a architectures::Streams>,
}

/// The place of a mixer in its stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixerPlace {
    /// Index of the layer.
    pub(crate) layer: usize,
    /// Index of the states: its own, or those of an earlier layer whose keys it reads.
    pub(crate) states: usize,
    /// Indexes of the states of its indexer that chooses blocks, if it has one.
    pub(crate) indexer: Option<IndexerStates>,
    /// Indexes of the states of its compressions: of attention, and of its indexer.
    pub(crate) entries: [Option<EntryStates>; 2],
}

/// Indexes of the states of a compression.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryStates {
    pub(crate) entries: usize,
    /// Past values and gates.
    pub(crate) past: usize,
}

/// Indexes of the states of an indexer that chooses blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerStates {
    pub(crate) keys: usize,
    /// Past keys, if the key of a block is their mean.
    pub(crate) means: Option<usize>,
}

/// Indexes of a layer's tables among the angles of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerAngles {
    /// The rotary embedding of its queries and keys.
    pub(crate) keys: Option<usize>,
    /// The rotary embedding of the elements behind those.
    pub(crate) second: Option<usize>,
    /// The growth of its queries.
    pub(crate) growth: Option<usize>,
    /// The rotary embedding of the keys of its indexer, and of its queries in latent attention.
    pub(crate) indexer: Option<usize>,
    /// The rotary embedding of compressed entries.
    pub(crate) entries: Option<usize>,
    /// The rotation that takes outputs back.
    pub(crate) outputs: Option<usize>,
}

impl<B: Backend> Mixer<B> {
    /// Loads a mixer; `None` if the layer has none.
    pub(crate) fn load(loader: &Loader<'_, B>, mixer: &architectures::Mixer, causal: bool) -> Result<Option<Self>> {
        Ok(Some(match mixer {
            architectures::Mixer::Attention(own) => Self::Attention(Box::new(Attention::load(loader, own, causal)?)),
            architectures::Mixer::Latent(own) => Self::Latent(Latent::load(loader, own)?),
            architectures::Mixer::Compressed(own) => Self::Compressed(CompressedAttention::load(loader, own)?),
            architectures::Mixer::DeltaNet(own) => Self::DeltaNet(DeltaNet::load(loader, own)?),
            architectures::Mixer::ShortConv(own) => Self::ShortConv(ShortConv::load(loader, own)?),
            architectures::Mixer::StateSpace(own) => Self::StateSpace(StateSpace::load(loader, own)?),
            architectures::Mixer::SelectiveScan(own) => Self::SelectiveScan(SelectiveScan::load(loader, own)?),
            architectures::Mixer::LinearAttention(own) => Self::LinearAttention(LinearAttention::load(loader, own)?),
            architectures::Mixer::None => return Ok(None),
        }))
    }

    /// Computes the output for the normalized stream, `[tokens, hidden]`.
    pub(crate) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut StageSequences<'_, B>,
        place: MixerPlace,
    ) -> Result<B::Act> {
        let own_states = |sequences| StageSequences::layer(sequences, place.layer, place.states);
        match self {
            Self::Attention(own) => own.forward(pass, x, sequences, place),
            Self::Compressed(own) => own.forward(pass, x, sequences, place),
            Self::Latent(own) => own.forward(pass, x, &mut own_states(sequences)),
            Self::DeltaNet(own) => own.forward(pass, x, &mut own_states(sequences)),
            Self::ShortConv(own) => own.forward(pass, x, &mut own_states(sequences)),
            Self::StateSpace(own) => own.forward(pass, x, &mut own_states(sequences)),
            Self::SelectiveScan(own) => own.forward(pass, x, &mut own_states(sequences)),
            Self::LinearAttention(own) => own.forward(pass, x, &mut own_states(sequences)),
        }
    }
}
