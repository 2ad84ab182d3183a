//! The blueprint: everything that a decoder is built from, and nothing of the architecture's name.
//!
//! ```text
//! tokens ─▶ embedding · scale (+ positions) ─▶ layers ─▶ norm ─▶ output · scale ─▶ logits
//!
//! layer:  x ─┬─▶ norm before ─▶ mixer ─▶ norm after ─▶ · residual scale ─▶ + ─┬─▶ … the same around the ffn
//!            └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! Sizes are in elements, contexts and windows in tokens. Tensors go by their canonical names.

pub(crate) mod check;
mod ffn;
mod mixer;
mod reads;
mod scorer;
mod state;
mod tensor;
mod wire;

pub(crate) use check::adaptable;
pub use ffn::{Activation, Experts, Ffn, Gated, Groups, Plain, Router, RouterScores, SharedExpert};
pub use mixer::{
    Attention, DecayRate, DeltaNet, HeadLayout, Latent, LatentQuery, LowRankQuery, Mixer, NormedPart, ShortConv,
};
pub use reads::Reads;
pub use scorer::{Score, Scorer, ScorerActivation, ScorerDense, ScorerInput};
pub use state::{BLOCK, LayerState};
pub use tensor::{Matrices, Norm, NormKind, Projection, Rows, Tensor, View};

use serde::{Deserialize, Serialize};

/// A decoder, or an encoder where it is not [`causal`](Self::causal).
///
/// One that comes from elsewhere is deserialized, which checks it; those that this crate makes are checked too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "wire::WireBlueprint")]
pub struct Blueprint {
    /// Rows of the embedding.
    pub vocabulary: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The longest context that the model was made for.
    pub context: u64,
    /// Whether a token sees earlier tokens only. Where it sees later ones too, a text is computed at once and nothing of it
    /// is kept.
    pub causal: bool,
    /// Tokens to the stream.
    pub embedding: Embedding,
    /// One after the other.
    pub layers: Vec<Layer>,
    /// Of the stream after the last layer.
    pub norm: Option<Norm>,
    /// The stream to logits; `None` where the model only embeds or scores.
    pub output: Option<Output>,
    /// The stream of a text to scores of it.
    pub scorer: Option<Scorer>,
}

/// The token embedding: `norm(scale · weight[token] + positions[position + offset] + types[type])`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub weight: Tensor,
    /// Rows are multiplied by it.
    pub scale: Option<f64>,
    /// Learned positions.
    pub positions: Option<Positions>,
    /// Which text of a pair a token is of.
    pub types: Option<TokenTypes>,
    /// Of the sum.
    pub norm: Option<Norm>,
}

/// Types of tokens: those of a text are of the first, those of the second text of a pair of the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTypes {
    /// `[count, hidden]`.
    pub weight: Tensor,
    /// How many there are; where there is one, all tokens are of it.
    pub count: u64,
}

/// Learned positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Positions {
    /// `[rows, hidden]`.
    pub weight: Tensor,
    /// How many there are.
    pub rows: u64,
    /// The row of the first position.
    pub offset: u64,
}

/// The projection to logits: `soft_cap · tanh(scale · projection(x) / soft_cap)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// `[vocabulary, hidden]`. Where it is tied its weight is the embedding's.
    pub projection: Projection,
    /// Logits are multiplied by it.
    pub scale: Option<f64>,
    /// Logits stay within it.
    pub soft_cap: Option<f64>,
}

/// A layer: a mixer, which sees other positions, and a feed-forward network, which does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// What the mixer is.
    pub mixer: Mixer,
    /// How the mixer is put into the stream.
    pub mixer_residual: Residual,
    /// What the feed-forward network is.
    pub ffn: Ffn,
    /// How it is put into the stream.
    pub ffn_residual: Residual,
    /// Both parts see the stream as it comes into the layer, and what they make is added to it together.
    pub parallel: bool,
}

/// How a part of a layer is put into the stream: `sum(x + scale · after(part(before(x))))`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// Of what goes in.
    pub before: Option<Norm>,
    /// Of what comes out.
    pub after: Option<Norm>,
    /// What comes out is multiplied by it.
    pub scale: Option<f64>,
    /// Of the stream after the addition.
    pub sum: Option<Norm>,
}

impl Blueprint {
    /// Whether the output projection is the embedding.
    pub fn tied(&self) -> bool {
        self.output.as_ref().is_some_and(|output| output.projection.weight == self.embedding.weight)
    }

    /// The softmax attention of the layers that have it.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention.as_ref()),
            _ => None,
        })
    }

    /// The softmax attention of the layers that have it, to be changed.
    pub(crate) fn attentions_mut(&mut self) -> impl Iterator<Item = &mut Attention> {
        self.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
            Mixer::Attention(attention) => Some(attention.as_mut()),
            _ => None,
        })
    }

    /// The most heads that any layer attends with.
    pub fn heads(&self) -> u64 {
        let heads = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(own) => own.heads,
            Mixer::Latent(own) => own.heads,
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) => 0,
        };
        self.layers.iter().map(heads).max().unwrap_or(0)
    }

    /// The gated feed-forward network of the layers that have one.
    pub fn gated(&self) -> impl Iterator<Item = &Gated> {
        self.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Gated(gated) => Some(gated.as_ref()),
            _ => None,
        })
    }

    /// What each layer keeps of a sequence.
    pub fn states(&self) -> impl Iterator<Item = LayerState> {
        self.layers.iter().map(|layer| LayerState::of(&layer.mixer, self.causal))
    }

    /// What the norm before the output adds under its root; that of the first layer where there is none.
    pub fn epsilon(&self) -> f64 {
        let first = self.layers.first().and_then(|layer| {
            let residual = &layer.mixer_residual;
            residual.before.as_ref().or(residual.after.as_ref()).or(residual.sum.as_ref())
        });
        self.norm.as_ref().or(first).map_or(0.0, |norm| norm.epsilon)
    }
}
