//! Blueprint: a complete description of a decoder that does not depend on the name of its
//! architecture.
//!
//! ```text
//! tokens ─▶ embedding · scale (+ positions) ─▶ layers ─▶ norm ─▶ output · scale ─▶ logits
//!
//! layer:  x ─┬─▶ norm before ─▶ mixer ─▶ norm after ─▶ · residual scale ─▶ + ─▶ … same for the ffn
//!            └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Sizes are in elements, contexts and windows in tokens. Tensors are identified by canonical
//! names.

mod adaptable;
pub(crate) mod check;
mod ffn;
mod mixer;
mod ngrams;
mod picture_input;
mod reads;
mod scorer;
mod state;
mod streams;
mod tensor;
mod tower;
mod wire;

pub use adaptable::Adaptable;
pub(crate) use check::adaptable;
pub use ffn::{
    Activation, Branch, ExpertLatent, Experts, Ffn, Gated, Groups, Network, Plain, Router, RouterScores, SharedExpert,
    Xielu,
};
pub use mixer::{
    Attention, AttentionGate, BlockIndexer, BlockRule, Buckets, CompressedAttention, CompressedEntries, Compression,
    DecayRate, DeltaInput, DeltaNet, EntryIndexer, GateFunction, HeadLayout, HeadPairing, Indexer, Latent, LatentQuery,
    LinearAttention, LowRankInput, LowRankQuery, Mixer, NormedPart, PositionBias, QueryGrowth, ScanStep, ScanVector,
    SelectiveScan, ShortConv, Slopes, StateSpace, StateSpaceNorm,
};
pub use ngrams::{NgramEmbedding, NgramInput};
pub use picture_input::{LargeTiles, MOST_GRIDS, PatchOrder, PictureFilter, PictureInput, PictureResize};
pub use reads::Reads;
pub use scorer::{PooledActivation, Score, Scorer, ScorerDense, ScorerInput};
pub use state::{BLOCK, LayerState};
pub use streams::{
    BalancedConnections, BalancedStreams, ConnectedStreams, LayerStreams, LearnedResidual, PredictedStreams,
    StreamConnection, StreamConnections, StreamMix, StreamNumbers, StreamPrediction, Streams,
};
pub use tensor::{Clamps, Matrices, Norm, NormKind, Projection, Rows, Tensor, View};
pub use tower::{
    BlockJoin, ClassRow, DeepProjector, PatchPositions, PatchWindows, PictureText, Pictures, Projector, ProjectorLayer,
    SquareFit, Standardization, TileText, Tower,
};

use serde::{Deserialize, Serialize};

/// Decoder, or encoder if it is not [`causal`](Self::causal).
///
/// Blueprints from other processes are deserialized, which checks them. This crate checks the
/// blueprints that it creates, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "wire::WireBlueprint")]
pub struct Blueprint {
    /// Number of rows of the embedding.
    pub vocabulary: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Longest context for which the model was trained.
    pub context: u64,
    /// Whether a token attends to earlier tokens only. Otherwise it attends to later tokens too;
    /// then a text is computed in one pass and no state of it is kept.
    pub causal: bool,
    /// Embedding from tokens to the residual stream.
    pub embedding: Embedding,
    /// Residual streams, if there are several.
    pub streams: Option<Streams>,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// Norm of the stream after the last layer.
    pub norm: Option<Norm>,
    /// Layers that compute an embedding from the pooled hidden states, one after the other. Empty
    /// if the pooled hidden states are the embedding.
    pub embedder: Vec<EmbedderLayer>,
    /// Projection from the stream to logits; `None` if the model only embeds or scores.
    pub output: Option<Output>,
    /// Head that computes scores of a text from the stream.
    pub scorer: Option<Scorer>,
    /// Pictures, if the model was made for them.
    pub pictures: Option<Pictures>,
}

/// Layer behind pooling: `activation(projection(x))`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbedderLayer {
    /// Number of elements of `x`: the width of the layer before it; for the first layer, a multiple
    /// of the hidden size, because several modes of pooling give one vector after the other.
    pub inputs: u64,
    /// Number of elements of the result.
    pub width: u64,
    /// `[width, inputs]`.
    pub projection: Projection,
    /// Activation of the projection.
    pub activation: Option<PooledActivation>,
}

/// The token embedding: `norm(scale · weight[token] + positions[position + offset] + types[type])`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub weight: Tensor,
    /// Factor of the rows.
    pub scale: Option<f64>,
    /// Position embedding.
    pub positions: Option<Positions>,
    /// Embedding of token types, which distinguish the two texts of a pair.
    pub types: Option<TokenTypes>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
    /// Embedding of tokens for each layer.
    pub of_layers: Option<LayerEmbeddings>,
}

impl Embedding {
    /// Returns an embedding of tokens without factors, positions, types or norms.
    pub fn of_tokens(weight: Tensor) -> Self {
        Self { weight, scale: None, positions: None, types: None, norm: None, of_layers: None }
    }
}

/// Embedding of token types. Tokens of a single text, and of the first text of a pair, have the
/// first type. Tokens of the second text have the second type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTypes {
    /// `[count, hidden]`.
    pub weight: Tensor,
    /// Number of types; if it is 1, all tokens have the same type.
    pub count: u64,
}

/// Position embedding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Positions {
    /// Rows of the embedding.
    pub table: PositionTable,
    /// Number of rows.
    pub rows: u64,
    /// Row of the first position.
    pub offset: u64,
}

impl Positions {
    /// Returns the learned rows; `None` if the rows are computed.
    pub fn learned(&self) -> Option<&Tensor> {
        match &self.table {
            PositionTable::Learned(table) => Some(table),
            PositionTable::Sinusoids => None,
        }
    }
}

/// Rows of a position embedding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionTable {
    /// `[rows, hidden]`: learned rows.
    Learned(Tensor),
    /// Row `p` is `[sin(p · f), cos(p · f)]`, with the frequencies `f = 10000^(-i / (n - 1))` for
    /// `i < n = hidden / 2` (arXiv 1706.03762).
    Sinusoids,
}

/// The projection to logits: `soft_cap · tanh(scale · projection(head(x)) / soft_cap)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Layer before the projection.
    pub head: Option<Box<OutputHead>>,
    /// `[vocabulary, hidden]`. Tied models use the embedding's weight.
    pub projection: Projection,
    /// Factor of the logits.
    pub scale: Option<f64>,
    /// Bound of the logits.
    pub soft_cap: Option<f64>,
}

impl Output {
    /// Returns a projection without a head, a factor or a bound.
    pub fn of(projection: Projection) -> Self {
        Self { head: None, projection, scale: None, soft_cap: None }
    }
}

/// Layer before the projection to logits: `norm(act(projection(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputHead {
    /// `[hidden, hidden]`.
    pub projection: Projection,
    /// Activation of the output of the projection.
    pub activation: Activation,
    /// Norm of the output of the activation.
    pub norm: Norm,
}

/// Layer: a mixer, which combines positions, and a feed-forward network, which does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Mixer.
    pub mixer: Mixer,
    /// Second mixer, which reads the same input.
    pub second_mixer: Option<Box<SecondMixer>>,
    /// Connection of the mixer to the residual stream.
    pub mixer_residual: Residual,
    /// Learned residual beside the mixer.
    pub learned_residual: Option<Box<LearnedResidual>>,
    /// Feed-forward network.
    pub ffn: Ffn,
    /// Connection of the feed-forward network to the residual stream.
    pub ffn_residual: Residual,
    /// True if both parts read the input of the layer, and their outputs are added to it together.
    pub parallel: bool,
    /// Third part, which adds the layer's own embedding of the token to the stream.
    pub token_input: Option<TokenInput>,
    /// `[1]`: factor of the output of the layer.
    pub scale: Option<Tensor>,
    /// How the layer computes the streams, if there are several.
    pub streams: Option<LayerStreams>,
    /// Part before the mixer, which adds n-grams of tokens to the streams.
    pub ngrams: Option<Box<NgramInput>>,
}

impl Layer {
    /// Returns a layer of a mixer and a feed-forward network, each with its connection to the
    /// residual stream, one after the other.
    pub fn new((mixer, mixer_residual): (Mixer, Residual), (ffn, ffn_residual): (Ffn, Residual)) -> Self {
        Self {
            mixer,
            second_mixer: None,
            mixer_residual,
            learned_residual: None,
            ffn,
            ffn_residual,
            parallel: false,
            token_input: None,
            scale: None,
            streams: None,
            ngrams: None,
        }
    }

    /// Returns the table of the experts of each token and their number, if there is one.
    pub fn experts_of_tokens(&self) -> Option<(&Tensor, u64)> {
        match &self.ffn {
            Ffn::Experts(own) => Some((own.router.of_tokens.as_ref()?, own.router.top_k)),
            _ => None,
        }
    }

    /// Returns the number of elements that the layer reads of each token besides the stream: of its
    /// n-grams, or the indexes of its experts.
    pub fn token_row_width(&self) -> u64 {
        let of_experts = self.experts_of_tokens().map_or(0, |(_, count)| count);
        self.ngrams.as_ref().map_or(of_experts, |own| own.embedding.embedded())
    }

    /// Returns the mixers of the layer.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        std::iter::once(&self.mixer).chain(self.second_mixer.as_ref().map(|second| &second.mixer))
    }
}

/// Second mixer of a layer: the output of the layer's mixers is `first(x) + scale · second(x)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondMixer {
    /// Any mixer but attention.
    pub mixer: Mixer,
    /// Factor of its output.
    pub scale: f64,
}

/// Part of a layer that reads the layer's own embedding `e` of each token, see
/// [`LayerEmbeddings`]: `x + norm(projection(act(gate(x)) · e))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenInput {
    /// `[width, hidden]`.
    pub gate: Projection,
    /// Activation of the gate.
    pub activation: Activation,
    /// `[hidden, width]`.
    pub projection: Projection,
    /// Norm of the output.
    pub norm: Norm,
}

/// Embedding of tokens for each layer:
/// `sum_scale · (table[token] + norm(projection_scale · projection(embedding)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEmbeddings {
    /// Elements of a layer's embedding.
    pub width: u64,
    /// Rows of tokens; `None` if they are zero.
    pub table: Option<LayerTable>,
    /// `[layers · width, hidden]`.
    pub projection: Projection,
    /// Factor of the projection's output.
    pub projection_scale: f64,
    /// `[width]`: norm of each layer's part of it.
    pub norm: Norm,
    /// Factor of the sum.
    pub sum_scale: f64,
}

/// Rows of tokens, with the elements of all layers: `scale · weight[token]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    /// Number of rows. Tokens beyond the last row use the first one.
    pub rows: u64,
    /// `[rows, layers · width]`.
    pub weight: Tensor,
    /// Factor of the rows.
    pub scale: f64,
}

/// Connection of a part of a layer to the residual stream:
/// `sum(x + scale · after(part(before(x))))`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// Norm of the part's input.
    pub before: Option<Norm>,
    /// Norm of the part's output.
    pub after: Option<Norm>,
    /// Factor of the part's output.
    pub scale: Option<f64>,
    /// Norm of the stream after the addition.
    pub sum: Option<Norm>,
}

impl Blueprint {
    /// True if the output projection is the embedding.
    pub fn tied(&self) -> bool {
        self.output.as_ref().is_some_and(|output| output.projection.weight == self.embedding.weight)
    }

    /// Returns the softmax attention of each layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention.as_ref()),
            _ => None,
        })
    }

    /// Returns the tower, if the model sees pictures.
    pub fn tower(&self) -> Option<&Tower> {
        match &self.pictures {
            Some(Pictures::Supported(tower)) => Some(tower),
            _ => None,
        }
    }

    /// Returns the softmax attention of each layer that has one, mutable.
    pub(crate) fn attentions_mut(&mut self) -> impl Iterator<Item = &mut Attention> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
            Mixer::Attention(attention) => Some(attention.as_mut()),
            _ => None,
        })
    }

    /// Returns the gated feed-forward network of each layer that has one.
    pub fn gated(&self) -> impl Iterator<Item = &Gated> {
        self.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Gated(gated) => Some(gated.as_ref()),
            _ => None,
        })
    }

    /// True if the layers can be on several devices: there is one residual stream, and no layer
    /// reads the keys of another one or has its own embedding or experts of tokens.
    pub fn is_divisible(&self) -> bool {
        self.streams.is_none()
            && self.layers.iter().all(|layer| layer.experts_of_tokens().is_none())
            && self.embedding.of_layers.is_none()
            && self.attentions().all(|attention| attention.reads_layer.is_none())
    }

    /// Returns the number of elements of an embedding.
    pub fn embedding_width(&self) -> u64 {
        self.embedder.last().map_or(self.hidden, |layer| layer.width)
    }

    /// Returns the states that each layer keeps of a sequence: those of its mixers, or one if it
    /// has none, and those of its indexer, its entries and its n-grams.
    pub fn states(&self) -> impl Iterator<Item = impl Iterator<Item = LayerState>> {
        self.layers.iter().map(|layer| {
            let of_mixers = layer.mixers().map(|mixer| LayerState::of(mixer, self.causal));
            let of_indexer = layer.mixer.block_indexer().map(LayerState::of_indexer);
            let of_indexer = of_indexer.into_iter().flat_map(|(keys, means)| std::iter::once(keys).chain(means));
            let of_entries = layer.mixer.compressions().flat_map(|(own, width)| LayerState::of_compression(own, width));
            of_mixers
                .chain(of_indexer)
                .chain(of_entries)
                .chain(layer.ngrams.as_ref().map(|own| self.state_of_ngrams(own)))
        })
    }

    /// Returns the state that the n-grams of a layer keep of a sequence: the past inputs of their
    /// convolution.
    pub fn state_of_ngrams(&self, own: &NgramInput) -> LayerState {
        let width = self.hidden * self.streams.as_ref().map_or(1, Streams::count);
        LayerState::Recurrent { numbers: width * own.dilation * (own.kernel - 1) }
    }

    /// Returns the epsilon of the norm before the output; without it, of the norm of the streams,
    /// of the embedding, or of the first layer.
    pub fn epsilon(&self) -> f64 {
        let of_streams = match &self.streams {
            Some(Streams::Connected(own)) => Some(&own.leave.norm),
            Some(Streams::Balanced(own)) => Some(&own.leave.norm),
            _ => None,
        };
        let first = self.layers.first().and_then(|layer| {
            let residual = &layer.mixer_residual;
            residual.before.as_ref().or(residual.after.as_ref()).or(residual.sum.as_ref())
        });
        let norm = self.norm.as_ref().or(of_streams).or(self.embedding.norm.as_ref()).or(first);
        norm.map_or(0.0, |norm| norm.epsilon)
    }
}
