//! The blueprint: everything that a decoder is built from, and nothing of the architecture's name.
//!
//! ```text
//! tokens ─▶ embedding · scale ─▶ layers ─▶ norm ─▶ output · scale ─▶ logits
//!
//! layer:  x ─┬─▶ norm before ─▶ mixer ─▶ norm after ─▶ · residual scale ─▶ + ─┬─▶ … the same around the ffn
//!            └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! Sizes are in elements, contexts and windows in tokens. Tensors go by their canonical names.

pub(crate) mod check;
mod wire;

use crate::rope::Rope;

/// A decoder.
///
/// One that comes from elsewhere is deserialized, which checks it; those that this crate makes are checked too.
#[derive(Clone, Debug, PartialEq)]
pub struct Blueprint {
    /// Rows of the embedding.
    pub vocabulary: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The longest context that the model was made for.
    pub context: u64,
    /// Tokens to the stream.
    pub embedding: Embedding,
    /// One after the other.
    pub layers: Vec<Layer>,
    /// Of the stream after the last layer.
    pub norm: Norm,
    /// The stream to logits.
    pub output: Output,
}

/// A tensor of the model, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its canonical name.
    pub name: String,
    /// What of it is meant.
    pub view: View,
}

/// What of a stored tensor is meant. Shapes in blueprints are those of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it, as it lies.
    Whole,
    /// Some of its rows: a part of projections that are stored as one.
    Rows {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// One matrix of a stack, `[items, …]`.
    Item {
        /// Which.
        index: u64,
    },
    /// A matrix with rows and columns exchanged.
    Transposed,
}

/// The token embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub weight: Tensor,
    /// Rows are multiplied by it.
    pub scale: Option<f64>,
}

/// The projection to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// `[vocabulary, hidden]`. Where it is tied its weight is the embedding's.
    pub projection: Projection,
    /// Logits are multiplied by it.
    pub scale: Option<f64>,
}

/// `y = x · Wᵀ + b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// What adapters call it.
    pub module: String,
    /// `[output, input]`.
    pub weight: Tensor,
    /// `[output]`.
    pub bias: Option<Tensor>,
}

/// RMS norm: `x / sqrt(mean(x²) + epsilon) · (weight + offset)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// `[width]`.
    pub weight: Tensor,
    /// Added under the root.
    pub epsilon: f64,
    /// Added to the weight: 1 for Gemma's from Hugging Face, 0 for those of GGUF files, which have it in the weights.
    pub offset: f64,
}

/// A layer: a mixer, which sees other positions, and a feed-forward network, which does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// What the mixer is.
    pub mixer: Mixer,
    /// How the mixer is put into the stream.
    pub mixer_residual: Residual,
    /// What the feed-forward network is.
    pub ffn: Ffn,
    /// How it is put into the stream.
    pub ffn_residual: Residual,
}

/// How a part of a layer is put into the stream: `x + scale · after(part(before(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Of what goes in.
    pub before: Option<Norm>,
    /// Of what comes out.
    pub after: Option<Norm>,
    /// What comes out is multiplied by it.
    pub scale: Option<f64>,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention with a KV cache.
    Attention(Box<Attention>),
}

/// Softmax attention with grouped heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// How the elements of query and key heads lie.
    pub layout: HeadLayout,
    /// Scores are multiplied by it.
    pub scale: f64,
    /// How far back a token looks, its own position included. `None`: to the beginning.
    pub window: Option<u64>,
    /// How positions are told apart; `None` where they are not.
    pub rope: Option<Rope>,
    /// `[heads · head_dim, hidden]`.
    pub query: Projection,
    /// `[kv_heads · head_dim, hidden]`.
    pub key: Projection,
    /// `[kv_heads · head_dim, hidden]`.
    pub value: Projection,
    /// `[hidden, heads · head_dim]`.
    pub output: Projection,
    /// Of each query head, before it is rotated.
    pub query_norm: Option<Norm>,
    /// Of each key head, before it is rotated.
    pub key_norm: Option<Norm>,
}

/// Which elements of a head form the pairs that `RoPE` rotates. Layers without `RoPE` have their rows in such an order
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLayout {
    /// Element `i` with `i + dim/2`, as Hugging Face stores weights.
    Half,
    /// Element `2i` with `2i + 1`, as GGUF files of the llama family store q and k.
    Interleaved,
}

/// The feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated(Box<Gated>),
}

/// A gated feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Rows of `gate` and `up`.
    pub width: u64,
    /// Of the gate.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub gate: Projection,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

impl Tensor {
    /// A whole tensor.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), view: View::Whole }
    }

    /// Some rows of a tensor.
    pub fn rows(name: impl Into<String>, first: u64, count: u64) -> Self {
        Self { name: name.into(), view: View::Rows { first, count } }
    }
}

impl HeadLayout {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Half, Self::Interleaved];

    /// The name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Interleaved => "interleaved",
        }
    }

    /// Reads the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Silu, Self::GeluTanh, Self::Gelu];

    /// The name in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_pytorch_tanh",
            Self::Gelu => "gelu",
        }
    }

    /// Reads the name, or one of the others that configs have for it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "swish" => Some(Self::Silu),
            "gelu_new" => Some(Self::GeluTanh),
            _ => Self::ALL.into_iter().find(|activation| activation.name() == name),
        }
    }
}

impl Blueprint {
    /// Whether the output projection is the embedding.
    pub fn tied(&self) -> bool {
        self.output.projection.weight == self.embedding.weight
    }

    /// The attention of each layer.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().map(|layer| {
            let Mixer::Attention(attention) = &layer.mixer;
            attention.as_ref()
        })
    }

    /// The feed-forward network of each layer.
    pub fn gated(&self) -> impl Iterator<Item = &Gated> {
        self.layers.iter().map(|layer| {
            let Ffn::Gated(gated) = &layer.ffn;
            gated.as_ref()
        })
    }
}
