//! The interface between a decoder and a compute backend: coarse operations on rows of activations,
//! a few operations for loading, and the states of sequences.
//!
//! There are two backends: [`cpu`](crate::backends::cpu), our kernels over mapped weights, and
//! [`candle`](crate::backends::candle), tensors on any device.
//! [`pipeline`](crate::backends::pipeline) runs ranges of layers on several of them. Only backends
//! know the encodings of weights.

mod pass;
mod routing;
mod run;
mod selection;

use std::fmt::Debug;
use std::ops::Range;

use anyhow::{Result, bail};
use architectures::{HeadLayout, LayerState, NormKind, Rows};
use protocol::KvType;

use crate::mapped::MappedTensor;
pub(crate) use device::{Best, Map};
pub(crate) use pass::{Inputs, PassParts};
pub(crate) use routing::{ExpertsOf, RoutingRule};
pub(crate) use run::Run;
pub(crate) use selection::Selection;

/// Computes the operations of a decoder. Activations are float32 rows, `[tokens, width]`.
pub(crate) trait Backend: Clone + Debug + Sized + Send + Sync + 'static {
    /// Rows of activations.
    type Act: Debug + Send;
    /// A projection: its weight, its bias and the factors of adapters.
    type Matrix: Debug + Send + Sync;
    /// A vector of numbers, such as the weights of a norm or attention sinks. Clones share it.
    type Vector: Clone + Debug + Send + Sync;
    /// The state that a layer keeps of a sequence.
    type State: State;
    /// Rotary angles of the tokens of a pass.
    type Angles: Debug + Send;
    /// Experts of a layer, prepared for a backend that does the routing itself.
    type Experts: Debug + Send + Sync;
    /// Recordings of a decoder's passes.
    type Recordings: Debug + Default + Send + Sync;

    /// Returns the name of the device that computes, as in load plans.
    fn device(&self) -> String;
    /// Returns how many of `tokens` one pass may append at most to a sequence of `length`. `heads`
    /// is the largest number of query heads of a layer.
    fn chunk(&self, heads: usize, length: usize, tokens: usize) -> usize;

    /// Returns the backend that computes a layer, if layers are split across devices. The index
    /// after the last layer stands for the final norm and the output projection.
    #[must_use]
    fn of_layer(&self, _layer: usize) -> Self {
        self.clone()
    }
    /// Takes over rows from the backend of the previous layer.
    fn received(&self, x: Self::Act) -> Result<Self::Act> {
        Ok(x)
    }

    /// Computes a pass. Its result is valid until the next pass.
    fn pass(
        &self,
        _recordings: &Self::Recordings,
        angles: &mut Vec<Self::Angles>,
        sequences: &mut [Sequence<'_, Self>],
        parts: PassParts<'_, Self>,
    ) -> Result<Self::Act> {
        parts.compute(angles, sequences)
    }

    /// Prepares a projection.
    fn matrix(&self, source: MatrixSource<Self>) -> Result<Self::Matrix>;
    /// Prepares a vector.
    fn vector(&self, numbers: Vec<f32>) -> Result<Self::Vector>;
    /// Creates the state of a layer for a new sequence.
    fn state(&self, shape: StateShape) -> Result<Self::State>;

    /// Creates rows, `[rows, width]`, that `fill` writes.
    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Self::Act>;
    /// Calls `each` with some rows, in order.
    fn read(&self, x: &Self::Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;
    /// Returns the number of rows.
    fn count(&self, x: &Self::Act) -> usize;
    /// Returns some rows, in the given order.
    fn select(&self, x: &Self::Act, rows: &[usize]) -> Result<Self::Act>;

    /// Computes `x · Wᵀ + b` for several projections of the same rows.
    fn project<'a, const N: usize>(&'a self, matrices: [&'a Self::Matrix; N], x: &Self::Act) -> Result<[Self::Act; N]> {
        self.project_runs(&[Run { by: 0, rows: 0..self.count(x) }], |_| matrices, x)
    }
    /// Computes the same for runs of rows, where each run has its own projections. There is at
    /// least one run, and together the runs cover all rows in order. The Nth projections of all
    /// runs have the same shape.
    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Self::Matrix; N] + Sync,
        x: &Self::Act,
    ) -> Result<[Self::Act; N]>;
    /// Multiplies each head of `x` by its own matrix, or by the transpose of it if `transposed`:
    /// `[tokens, heads · input]` to `[tokens, heads · output]`.
    fn project_heads<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Self::Matrix + Sync,
        transposed: bool,
        x: &Self::Act,
    ) -> Result<Self::Act>;
    /// Normalizes each run of `norm.width` elements.
    fn norm(&self, norm: &NormOf<Self>, x: &Self::Act) -> Result<Self::Act>;
    /// Applies an operation to every element.
    fn map(&self, x: Self::Act, map: Map<'_, Self::Act>) -> Result<Self::Act>;
    /// Extracts a part of each head: `[tokens, heads · width]` to `[tokens, heads · part]`.
    fn part(&self, x: &Self::Act, part: HeadPart) -> Result<Self::Act>;
    /// Joins each head of `a` with the same head of `b`, side by side: `[tokens, heads · (a + b)]`
    /// for heads of `a` and `b` elements.
    fn join(&self, a: &Self::Act, b: &Self::Act, heads: usize) -> Result<Self::Act>;

    /// Prepares the rotary angles of a pass's tokens.
    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Self::Angles>;
    /// Applies the rotary embedding to a part of each head.
    fn rotate(&self, x: Self::Act, part: HeadPart, angles: &Self::Angles) -> Result<Self::Act>;
    /// Appends keys and values to the sequences, then lets the queries attend to them. Returns
    /// `[tokens, heads · value_dim]`.
    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        qkv: [&Self::Act; 3],
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;
    /// Computes a causal convolution of each channel over positions, with weights `[width,
    /// kernel]`. Its past inputs, `[kernel - 1, width]`, are kept in the sequences' recurrent
    /// states, from element `convolution.at` on.
    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Self::Act,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;
    /// Computes a gated delta rule, see [`architectures::DeltaNet`]. The matrices of its heads,
    /// `[value_heads, key_dim, value_dim]`, are the first part of the sequences' recurrent states.
    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        inputs: DeltaInputs<'_, Self>,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;

    /// Whether the backend can find the [best](Self::best) candidates of logits without copying the
    /// logits to the host.
    fn selects(&self) -> bool {
        false
    }
    /// Returns the best candidates of some rows of logits. Only for a backend that
    /// [selects](Self::selects).
    fn best(&self, _logits: &Self::Act, _wanted: &[(usize, &Selection)]) -> Result<Vec<Best>> {
        bail!("invariant: a backend that selects implements `best`")
    }

    /// Prepares experts for [`route`](Self::route). Returns `None` if the backend cannot choose
    /// experts itself; the caller then chooses them.
    fn experts(&self, _experts: &ExpertsOf<'_, Self>) -> Result<Option<Self::Experts>> {
        Ok(None)
    }
    /// Adds the weighted outputs of each token's experts to `sum`. The experts are chosen by
    /// `logits`, `[tokens, experts]`.
    fn route(
        &self,
        experts: &Self::Experts,
        logits: &Self::Act,
        x: &Self::Act,
        sum: Option<Self::Act>,
    ) -> Result<Self::Act>;
    /// Adds each weighted row of `y` to a row of `x`: `x[rows[i]] += weights[i] · y[i]`.
    fn scatter(&self, x: Self::Act, y: &Self::Act, rows: &[usize], weights: &[f32]) -> Result<Self::Act>;
}

/// Added to the squared length of the queries and keys of a delta rule, before they are divided by
/// their length.
pub(crate) const LENGTH_EPSILON: f32 = 1e-6;

/// The state that a layer keeps of a sequence. The states of all layers of a sequence have the same
/// length.
pub(crate) trait State: Debug + Send + Sized {
    /// Returns the length of the longest prefix, of at most `length` tokens, that the state can go
    /// back to.
    fn nearest(&self, length: usize) -> usize;
    /// Goes back to a length that [`nearest`](Self::nearest) returned.
    fn truncate(&mut self, length: usize);
    /// Saves the current position, if the state could not go back to it otherwise.
    fn checkpoint(&mut self);
    /// Whether these positions can be removed from the state.
    fn can_shift(&self, shift: &Shift<'_>) -> bool;
    /// Removes positions from the state.
    ///
    /// # Errors
    /// Fails if there is no memory.
    fn shift(&mut self, shift: &Shift<'_>) -> Result<()>;
    /// Returns a separate state with the first `length` tokens, if this needs no computation.
    fn share(&self, length: usize) -> Option<Self>;
}

/// The parts that a projection is made from.
pub(crate) struct MatrixSource<B: Backend> {
    pub(crate) weight: WeightSource,
    /// `[output]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// Factors of adapters, which add `scale · up(down(x))`.
    pub(crate) adapters: Vec<LowRank<B>>,
}

/// The source of a matrix's numbers.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// Rows of a mapped matrix.
    Mapped {
        tensor: MappedTensor,
        /// Selected rows; `None` means all.
        rows: Option<Rows>,
    },
    /// Columns of a mapped matrix, which become the rows.
    Transposed {
        tensor: MappedTensor,
        /// Selected columns; `None` means all.
        columns: Option<Rows>,
    },
    /// `[rows, columns]` in private memory.
    Numbers { numbers: Vec<f32>, shape: [usize; 2] },
}

impl WeightSource {
    /// Returns the numbers of rows and columns of the matrix.
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            Self::Mapped { tensor, rows } => {
                [rows.map_or(tensor.shape[0], |rows| rows.count as usize), tensor.shape[1]]
            }
            Self::Transposed { tensor, columns } => {
                [columns.map_or(tensor.shape[1], |columns| columns.count as usize), tensor.shape[0]]
            }
            Self::Numbers { shape, .. } => *shape,
        }
    }
}

/// The factors that an adapter adds to a projection.
#[derive(Debug)]
pub(crate) struct LowRank<B: Backend> {
    /// `[rank, input]`.
    pub(crate) down: B::Matrix,
    /// `[output, rank]`.
    pub(crate) up: B::Matrix,
    pub(crate) scale: f64,
}

/// A norm: `normalized(x) · weight + bias`.
#[derive(Debug)]
pub(crate) struct NormOf<B: Backend> {
    pub(crate) kind: NormKind,
    /// Number of elements that are normalized together.
    pub(crate) width: usize,
    /// `[width]`, or `[runs · width]` if each of `runs` consecutive runs of elements, such as
    /// heads, has its own weights.
    pub(crate) weight: B::Vector,
    /// `[width]`.
    pub(crate) bias: Option<B::Vector>,
    pub(crate) epsilon: f32,
}

/// A range of elements of each head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPart {
    /// Number of elements of a head.
    pub(crate) width: usize,
    /// Index of the first selected element.
    pub(crate) first: usize,
    /// Number of selected elements.
    pub(crate) count: usize,
}

/// Parameters of the rotary angles of a pass's tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnglesOf<'a> {
    /// Radians per position, one for each pair of rotated elements: for short sequences, then for
    /// long ones.
    pub(crate) frequencies: [&'a [f64]; 2],
    /// Position of each token.
    pub(crate) positions: &'a [usize],
    /// For each token, whether its sequence uses the frequencies of long sequences.
    pub(crate) long: &'a [bool],
    /// Factor by which rotated elements are multiplied.
    pub(crate) magnitude: f64,
    pub(crate) layout: HeadLayout,
}

impl AnglesOf<'_> {
    /// Returns the number of angles of a token.
    pub(crate) fn half(&self) -> usize {
        self.frequencies[0].len()
    }

    /// Writes the scaled cosines and sines of all tokens, `[tokens, half]` each.
    pub(crate) fn fill(&self, cosines: &mut [f32], sines: &mut [f32]) {
        let rows = cosines.chunks_exact_mut(self.half()).zip(sines.chunks_exact_mut(self.half()));
        for ((cosines, sines), (position, long)) in rows.zip(self.positions.iter().zip(self.long)) {
            let numbers = cosines.iter_mut().zip(sines).zip(self.frequencies[usize::from(*long)]);
            for ((cosine, sine), frequency) in numbers {
                let (s, c) = (*position as f64 * frequency).sin_cos();
                (*cosine, *sine) = ((c * self.magnitude) as f32, (s * self.magnitude) as f32);
            }
        }
    }
}

/// Parameters of attention.
#[derive(Debug)]
pub(crate) struct Attend<'a, B: Backend> {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    /// Number of elements of a value. With [`Values::InKeys`], values are this many first elements
    /// of keys.
    pub(crate) value_dim: usize,
    pub(crate) values: Values,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<usize>,
    pub(crate) causal: bool,
    /// `[heads]`.
    pub(crate) sinks: Option<&'a B::Vector>,
}

/// The place of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// In separate rows.
    Own,
    /// In the first elements of keys; the value argument is ignored.
    InKeys,
}

/// A causal convolution of each channel.
#[derive(Debug)]
pub(crate) struct Convolution<B: Backend> {
    /// `[width, kernel]`.
    pub(crate) weight: B::Vector,
    /// `[width]`.
    pub(crate) bias: Option<B::Vector>,
    pub(crate) kernel: usize,
    /// Index in the recurrent state where the past inputs of the convolution begin.
    pub(crate) at: usize,
}

/// A gated delta rule.
#[derive(Debug)]
pub(crate) struct DeltaRule<B: Backend> {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// `[value_heads]`.
    pub(crate) decay_rate: B::Vector,
    /// `[value_heads]`.
    pub(crate) decay_bias: B::Vector,
}

/// Inputs of a delta rule. Queries and keys are not yet divided by their length.
pub(crate) struct DeltaInputs<'a, B: Backend> {
    /// `[tokens, key_heads · key_dim]`.
    pub(crate) query: &'a B::Act,
    /// `[tokens, key_heads · key_dim]`.
    pub(crate) key: &'a B::Act,
    /// `[tokens, value_heads · value_dim]`.
    pub(crate) value: &'a B::Act,
    /// `[tokens, value_heads]`.
    pub(crate) beta: &'a B::Act,
    /// `[tokens, value_heads]`.
    pub(crate) decay: &'a B::Act,
}

/// Parameters of a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateShape {
    pub(crate) state: LayerState,
    /// Largest number of tokens of a sequence.
    pub(crate) context: usize,
    /// Type in which keys and values are stored.
    pub(crate) kv_type: KvType,
}

/// A sequence in a pass: the states of its layers, and the tokens that the pass appends.
#[derive(Debug)]
pub(crate) struct Sequence<'a, B: Backend> {
    pub(crate) states: &'a mut [B::State],
    pub(crate) span: Span,
    /// Whether the sequence uses the frequencies of long sequences.
    pub(crate) long: bool,
    /// Index of the first token of the second text, counted among the sequence's tokens in this
    /// pass. `None` if no token belongs to a second text.
    pub(crate) second: Option<usize>,
}

/// The tokens of a sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index of the first among the tokens of the pass.
    pub(crate) first: usize,
    /// Position of the first in the sequence.
    pub(crate) position: usize,
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Whether the tokens are given, as those of a prompt, and not generated one by one.
    pub(crate) is_prompt: bool,
}

impl Span {
    /// Returns the first position after the span.
    pub(crate) fn end(self) -> usize {
        self.position + self.tokens
    }

    /// Returns the positions that a token attends to; `token` is its index in the span.
    pub(crate) fn seen(self, token: usize, window: Option<usize>, causal: bool) -> Range<usize> {
        let own = self.position + token;
        let from = window.map_or(0, |window| (own + 1).saturating_sub(window));
        let to = match window {
            _ if causal => own + 1,
            Some(window) => self.end().min(own + window),
            None => self.end(),
        };
        from..to
    }
}

/// Positions that are removed from a sequence; later positions move up.
#[derive(Clone, Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) removed: Range<usize>,
    /// Rotation that takes keys to their new positions; `None` if RoPE is not applied to keys.
    pub(crate) rotation: Option<KeyRotation<'a>>,
}

/// A rotation of a part of each key by the same angles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRotation<'a> {
    pub(crate) cosines: &'a [f32],
    pub(crate) sines: &'a [f32],
    pub(crate) layout: HeadLayout,
    /// Index of the first element of the part.
    pub(crate) first: usize,
}
