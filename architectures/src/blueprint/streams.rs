//! Several residual streams: of which each layer computes one (`AltUp`, arXiv 2301.13310), or which
//! each part of a layer reads and writes (hyper-connections, arXiv 2409.19606; with balanced
//! shares, arXiv 2512.24880); and learned residuals beside a mixer (`LAuReL`, arXiv 2411.07501).

use serde::{Deserialize, Serialize};

use super::{Matrices, Norm, Projection, Tensor};

/// Residual streams of `[hidden]` each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// Each layer computes one of them and predicts the others.
    Predicted(Box<PredictedStreams>),
    /// All parts of layers read and write all of them.
    Connected(Box<ConnectedStreams>),
    /// The same, and the parts also mix the streams with each other.
    Balanced(Box<BalancedStreams>),
}

impl Streams {
    /// Returns the number of streams.
    pub fn count(&self) -> u64 {
        match self {
            Self::Predicted(own) => own.count,
            Self::Connected(own) => own.count,
            Self::Balanced(own) => own.count,
        }
    }
}

/// How a layer computes several streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerStreams {
    /// It computes one of them and predicts the others.
    Predicted(Box<StreamPrediction>),
    /// Its parts read and write all of them.
    Connected(Box<StreamConnections>),
    /// Its parts read, write and mix all of them.
    Balanced(Box<BalancedConnections>),
}

/// Streams of which each layer computes one. The first is the embedding, the others are projections
/// of it: `enter[i](x)`, scaled to the root mean square of `x`. The input of the last norm is the
/// mean of the first stream and of `leave[i](stream i + 1)`, scaled to the root mean square of the
/// first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedStreams {
    /// Number of streams.
    pub count: u64,
    /// Index of the stream that layers compute.
    pub active: u64,
    /// `[hidden, hidden]` for each stream but the first.
    pub enter: Matrices,
    /// `[hidden, hidden]` for each stream but the first.
    pub leave: Matrices,
}

/// How a layer predicts the streams, and corrects them by the output `y` that it computes of the
/// predicted active stream. With `m(x) = tanh(router(norm(x)) / hidden)`:
///
/// `predicted[k] = stream[k] + Σ predict(m(stream[active]))[k · count + p] · stream[p]`,
/// `corrected[k] = predicted[k] + (1 + correct(m(y))[k]) · (y - predicted[active])`.
///
/// The layer's [`TokenInput`](super::TokenInput) reads `output_scale · corrected[active]` and adds
/// its output to all streams but the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamPrediction {
    /// `[hidden]`.
    pub norm: Norm,
    /// `[count, hidden]`.
    pub router: Projection,
    /// `[count², count]`.
    pub predict: Tensor,
    /// `[count, count]`.
    pub correct: Tensor,
    /// `[hidden]`.
    pub output_scale: Option<Tensor>,
}

/// Streams that all parts of layers read and write. Each begins as the embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectedStreams {
    /// Number of streams.
    pub count: u64,
    /// Mixes the streams behind the last layer.
    pub leave: StreamMix,
}

/// Connections of the parts of a layer to the streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConnections {
    /// Of the mixer.
    pub mixer: StreamConnection,
    /// Of the feed-forward network.
    pub ffn: StreamConnection,
}

/// Connection of a part of a layer to all streams. The part computes `y` from a mix of the streams,
/// then `stream[k] ← stream[k] + 2 · sigmoid(inject(n) / count)[k] · y`, with the normalized
/// streams `n` of the mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConnection {
    /// Makes the input of the part.
    pub mix: StreamMix,
    /// `[count, count · hidden]`.
    pub inject: Projection,
}

/// Mix of streams: the mean over the streams of `sigmoid(up(silu(down(n) / count))) · n`, with the
/// normalized streams `n`, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamMix {
    /// `[count · hidden]`: the norms of the streams.
    pub norm: Norm,
    /// Number of rows of `down`.
    pub rank: u64,
    /// `[rank, count · hidden]`.
    pub down: Projection,
    /// `[count · hidden, rank]`.
    pub up: Projection,
}

/// Streams that all parts of layers read, write and mix. Each begins as the embedding. The input of
/// the last norm is `Σ read[k] · stream[k]`, with `read = sigmoid(leave) + epsilon`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancedStreams {
    /// Number of streams.
    pub count: u64,
    /// Constant that is added to shares and to their sums.
    pub epsilon: f64,
    /// Number of times that the sums of shares are made 1.
    pub iterations: u64,
    /// `count` numbers.
    pub leave: StreamNumbers,
}

/// Connections of the parts of a layer to streams that they mix. The numbers of a part are
/// `[read, write, shares]`, of `count`, `count` and `count · count` numbers. It computes `y` from
/// `Σ (sigmoid(read[k]) + epsilon) · stream[k]`, then
/// `stream[k] ← 2 · sigmoid(write[k]) · y + Σ balanced[p][k] · stream[p]`.
///
/// The balanced shares begin as `softmax(shares[p]) + epsilon`. Their columns are divided by their
/// sums; then `iterations - 1` times their rows, and their columns again. To each sum `epsilon` is
/// added (Sinkhorn-Knopp).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancedConnections {
    /// Of the mixer.
    pub mixer: StreamNumbers,
    /// Of the feed-forward network.
    pub ffn: StreamNumbers,
}

/// Numbers that are computed from all streams: `factor · projection(norm(streams)) + bias`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamNumbers {
    /// `[count · hidden]`: norm of all streams together.
    pub norm: Norm,
    /// `[numbers, count · hidden]`.
    pub projection: Projection,
    /// A factor for each kind of numbers: `[3]` for `[read, write, shares]`, or `[1]`.
    pub factors: Tensor,
    /// `[numbers]`.
    pub bias: Tensor,
}

/// Learned residual beside a mixer. With the mixer's input `h`, the stream after the mixer is
/// `scale · (x + after(mixer(h)) + h + norm(up(down(h))))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedResidual {
    /// Number of rows of `down`.
    pub rank: u64,
    /// `[rank, hidden]`.
    pub down: Projection,
    /// `[hidden, rank]`.
    pub up: Projection,
    /// `[hidden]`.
    pub norm: Norm,
    /// Factor of the sum.
    pub scale: f64,
}
