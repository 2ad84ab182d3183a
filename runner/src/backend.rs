//! What a decoder asks of whoever computes: coarse operations on rows of activations, a few of them for loading, and states of sequences.
//!
//! There are two: [`cpu`](crate::backends::cpu), our kernels over mapped weights, and [`candle`](crate::backends::candle),
//! tensors on any device. Encodings of weights are known inside of them only.

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
pub(crate) use routing::{ExpertsOf, Rule};
pub(crate) use run::Run;
pub(crate) use selection::Selection;

/// Computes. Activations are float32 rows, `[tokens, width]`.
pub(crate) trait Backend: Clone + Debug + Sized + Send + Sync + 'static {
    /// Rows of activations.
    type Act: Debug + Send;
    /// A projection: its weight, its bias, what adapters add.
    type Matrix: Debug + Send + Sync;
    /// A few numbers: weights of norms, sinks. Clones share them.
    type Vector: Clone + Debug + Send + Sync;
    /// What a layer keeps of a sequence.
    type State: State;
    /// What turns the heads of a pass's tokens.
    type Angles: Debug + Send;
    /// Experts among which it chooses by itself.
    type Experts: Debug + Send + Sync;
    /// What it remembers of a decoder's passes.
    type Recordings: Debug + Default + Send + Sync;

    /// Where it computes, as load plans name it.
    fn device(&self) -> String;
    /// How many of `tokens` to append to a sequence of `length` in one pass, at most, for a model of so many heads.
    fn chunk(&self, heads: usize, length: usize, tokens: usize) -> usize;

    /// Who computes a layer, where layers are shared out; what follows the last one has the number behind it.
    #[must_use]
    fn of_layer(&self, _layer: usize) -> Self {
        self.clone()
    }
    /// Rows that whoever has the layer before has made, for this one.
    fn received(&self, x: Self::Act) -> Result<Self::Act> {
        Ok(x)
    }

    /// Computes a pass; what it gives is of use until the next one.
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
    /// Prepares numbers.
    fn vector(&self, numbers: Vec<f32>) -> Result<Self::Vector>;
    /// The state of a layer for a new sequence.
    fn state(&self, shape: StateShape) -> Result<Self::State>;

    /// Rows that `fill` writes: `[rows, width]`.
    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Self::Act>;
    /// Hands some rows to `each`, in order.
    fn read(&self, x: &Self::Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;
    /// How many rows there are.
    fn count(&self, x: &Self::Act) -> usize;
    /// Some rows, in that order.
    fn select(&self, x: &Self::Act, rows: &[usize]) -> Result<Self::Act>;

    /// `x · Wᵀ + b` for several projections of the same rows.
    fn project<'a, const N: usize>(&'a self, matrices: [&'a Self::Matrix; N], x: &Self::Act) -> Result<[Self::Act; N]> {
        self.project_runs(&[Run { by: 0, rows: 0..self.count(x) }], |_| matrices, x)
    }
    /// The same for runs of rows, one or more that are all rows in their order, each by projections of its own; those of a kind are
    /// alike in shape.
    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Self::Matrix; N] + Sync,
        x: &Self::Act,
    ) -> Result<[Self::Act; N]>;
    /// Each head of `x` by a matrix of its own: `[tokens, heads · input]` to `[tokens, heads · output]`; by its transpose
    /// where that is said.
    fn project_heads<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Self::Matrix + Sync,
        transposed: bool,
        x: &Self::Act,
    ) -> Result<Self::Act>;
    /// Normalizes each run of as many elements as the norm has weights.
    fn norm(&self, norm: &NormOf<Self>, x: &Self::Act) -> Result<Self::Act>;
    /// Changes every element.
    fn map(&self, x: Self::Act, map: Map<'_, Self::Act>) -> Result<Self::Act>;
    /// A part of each head: `[tokens, heads · width]` to `[tokens, heads · part]`.
    fn part(&self, x: &Self::Act, part: Part) -> Result<Self::Act>;
    /// Puts the heads of two side by side: `[tokens, heads · (a + b)]`.
    fn join(&self, a: &Self::Act, b: &Self::Act, heads: usize) -> Result<Self::Act>;

    /// Prepares the rotation of a pass's tokens.
    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Self::Angles>;
    /// Turns a part of each head.
    fn rotate(&self, x: Self::Act, part: Part, angles: &Self::Angles) -> Result<Self::Act>;
    /// Appends keys and values to the sequences, and lets queries attend to them: `[tokens, heads · value_dim]`.
    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        qkv: [&Self::Act; 3],
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;
    /// A causal convolution of each channel over positions: weights `[width, kernel]`. It is the part of the sequences'
    /// recurrent states from number `at` on, `[kernel - 1, width]`.
    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Self::Act,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;
    /// A gated delta rule, see [`architectures::DeltaNet`]; the matrices of its heads are the first part of the sequences'
    /// recurrent states, `[value_heads, key_dim, value_dim]`.
    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        inputs: DeltaInputs<'_, Self>,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Self::Act>;

    /// Whether it finds the [best](Self::best) of logits where they are.
    fn selects(&self) -> bool {
        false
    }
    /// The best of some rows of logits, for a backend that [selects](Self::selects).
    fn best(&self, _logits: &Self::Act, _wanted: &[(usize, &Selection)]) -> Result<Vec<Best>> {
        bail!("invariant: who selects knows how")
    }

    /// Prepares experts among which this backend chooses by itself; `None` where it cannot, and only computes what others have chosen.
    fn experts(&self, _experts: &ExpertsOf<'_, Self>) -> Result<Option<Self::Experts>> {
        Ok(None)
    }
    /// What the experts of each token make of it, put to `sum`; they are chosen by `logits`, `[tokens, experts]`.
    fn route(
        &self,
        experts: &Self::Experts,
        logits: &Self::Act,
        x: &Self::Act,
        sum: Option<Self::Act>,
    ) -> Result<Self::Act>;
    /// Puts each row's share of `y` to a row of `x`: `x[rows[i]] += weights[i] · y[i]`.
    fn scatter(&self, x: Self::Act, y: &Self::Act, rows: &[usize], weights: &[f32]) -> Result<Self::Act>;
}

/// Added to the square of a length before the queries and keys of a delta rule are divided by it.
pub(crate) const LENGTH_EPSILON: f32 = 1e-6;

/// What a layer keeps of a sequence. All layers of a sequence have the same length.
pub(crate) trait State: Debug + Send + Sized {
    /// The longest beginning of at most `length` tokens that it can go back to.
    fn nearest(&self, length: usize) -> usize;
    /// Goes back to a length that [`nearest`](Self::nearest) gave.
    fn truncate(&mut self, length: usize);
    /// Remembers where it is, if it could not come back otherwise.
    fn checkpoint(&mut self);
    /// Whether positions can be taken out of it.
    fn can_shift(&self, shift: &Shift<'_>) -> bool;
    /// Takes positions out of it.
    ///
    /// # Errors
    /// Where there is no memory.
    fn shift(&mut self, shift: &Shift<'_>) -> Result<()>;
    /// A state of its own with the first tokens, where it can be had without computing.
    fn share(&self, length: usize) -> Option<Self>;
}

/// What a projection is made of.
pub(crate) struct MatrixSource<B: Backend> {
    pub(crate) weight: WeightSource,
    /// `[output]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// What adapters add: `scale · up(down(x))`.
    pub(crate) adapters: Vec<LowRank<B>>,
}

/// Where the numbers of a matrix are.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// Rows of a mapped matrix.
    Mapped {
        tensor: MappedTensor,
        /// Some of them; all, where it is not said.
        rows: Option<Rows>,
    },
    /// Columns of a mapped matrix.
    Transposed {
        tensor: MappedTensor,
        /// Some of them; all, where it is not said.
        columns: Option<Rows>,
    },
    /// `[rows, columns]` in memory of this process.
    Numbers { numbers: Vec<f32>, shape: [usize; 2] },
}

impl WeightSource {
    /// Rows and columns of the matrix.
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

/// What an adapter adds to a projection.
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
    /// Elements that are normed together.
    pub(crate) width: usize,
    /// `[width]`, or `[runs · width]` where runs take turns.
    pub(crate) weight: B::Vector,
    /// `[width]`.
    pub(crate) bias: Option<B::Vector>,
    pub(crate) epsilon: f32,
}

/// Which elements of each head are meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Elements of a head.
    pub(crate) width: usize,
    /// The first that is meant.
    pub(crate) first: usize,
    /// How many.
    pub(crate) count: usize,
}

/// How the heads of a pass's tokens are turned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnglesOf<'a> {
    /// Radians per position, one for two rotated elements: those of short sequences, and those of long ones.
    pub(crate) frequencies: [&'a [f64]; 2],
    /// Of each token.
    pub(crate) positions: &'a [usize],
    /// Of each token whether its sequence is a long one.
    pub(crate) long: &'a [bool],
    /// Rotated elements are multiplied by it.
    pub(crate) magnitude: f64,
    pub(crate) layout: HeadLayout,
}

impl AnglesOf<'_> {
    /// Angles of a token.
    pub(crate) fn half(&self) -> usize {
        self.frequencies[0].len()
    }

    /// Cosines and sines of all tokens, `[tokens, half]` each.
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

/// How queries attend.
#[derive(Debug)]
pub(crate) struct Attend<'a, B: Backend> {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    /// Where values are the first elements of keys, how many of them.
    pub(crate) value_dim: usize,
    pub(crate) values: Values,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<usize>,
    pub(crate) causal: bool,
    /// `[heads]`.
    pub(crate) sinks: Option<&'a B::Vector>,
}

/// Where values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// In rows of their own.
    Own,
    /// They are the first elements of keys; what is given as values is not looked at.
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
    /// Where its part of the recurrent state begins.
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

/// What a delta rule gets, before queries and keys are divided by their length.
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

/// What a new state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateShape {
    pub(crate) state: LayerState,
    /// Tokens that a sequence may have.
    pub(crate) context: usize,
    /// How keys and values are kept.
    pub(crate) kv_type: KvType,
}

/// A sequence in a pass: its layers' states, and the tokens that are appended.
#[derive(Debug)]
pub(crate) struct Sequence<'a, B: Backend> {
    pub(crate) states: &'a mut [B::State],
    pub(crate) span: Span,
    /// Whether frequencies of long sequences hold for it.
    pub(crate) long: bool,
    /// The first of the pass's tokens of it that is of the second text, where there are two.
    pub(crate) second: Option<usize>,
}

/// The tokens of a sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first among those of the pass.
    pub(crate) first: usize,
    /// Position of the first in the sequence.
    pub(crate) position: usize,
    /// How many.
    pub(crate) tokens: usize,
    /// Whether they are given, and not generated one after the other.
    pub(crate) is_prompt: bool,
}

impl Span {
    /// The first position after them.
    pub(crate) fn end(self) -> usize {
        self.position + self.tokens
    }

    /// The positions that a token sees; `token` is its place in the span.
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

/// Positions that are taken out of a sequence; those behind them move up.
#[derive(Clone, Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) removed: Range<usize>,
    /// How keys are turned back, where they are turned at all.
    pub(crate) turn: Option<Turn<'a>>,
}

/// A rotation of a part of each key by the same angles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) cosines: &'a [f32],
    pub(crate) sines: &'a [f32],
    pub(crate) layout: HeadLayout,
    /// The first element of the part.
    pub(crate) first: usize,
}
