//! Several residual streams of which each layer computes one (`AltUp`, arXiv 2301.13310), and
//! learned residuals beside a mixer (`LAuReL`, arXiv 2411.07501).

use serde::{Deserialize, Serialize};

use super::{Matrices, Norm, Projection, Tensor};

/// Residual streams of `[hidden]` each. The first is the embedding, the others are projections of
/// it: `enter[i](x)`, scaled to the root mean square of `x`. The input of the last norm is the mean
/// of the first stream and of `leave[i](stream i + 1)`, scaled to the root mean square of the
/// first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
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
pub struct LayerStreams {
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
