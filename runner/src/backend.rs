//! The interface between the layers of a decoder and a compute backend: coarse operations on rows
//! of activations, a few operations for loading, and the states of sequences.
//!
//! There are two backends: [`cpu`](crate::backends::cpu), our kernels over mapped weights, and
//! [`candle`](crate::backends::candle), tensors on any device. Only backends know the encodings of
//! weights.

mod choice;
mod compression;
mod matrix_source;
mod pass;
mod position_bias;
mod recurrence;
mod rotary;
mod routing;
mod run;
mod selection;
mod sequences;
mod states;
mod stream_shares;

use std::fmt::Debug;
use std::ops::Range;

use anyhow::{Result, bail};
use architectures::NormKind;

pub(crate) use choice::{BlockChoice, ChosenPositions, IndexQueries};
pub(crate) use compression::{AttendEntries, Compression, EntryChoice, entries_seen};
pub(crate) use device::{Best, Map};
pub(crate) use matrix_source::{LowRank, MatrixSource, WeightSource};
pub(crate) use pass::{DirectExecution, Inputs, PassExecution, PassParts};
pub(crate) use position_bias::PositionBias;
pub(crate) use recurrence::{LENGTH_EPSILON, Recurrence, RecurrenceInputs, RecurrenceRule};
pub(crate) use rotary::{AnglesOf, HeadPart, TokenPosition};
pub(crate) use routing::{ExpertsOf, RoutedExperts, RoutingRule};
pub(crate) use run::Run;
pub(crate) use selection::Selection;
pub(crate) use sequences::{LayerSequences, Sequence, Span, StageSequences};
pub(crate) use states::{KeyRotation, SequenceId, Shift, State, StateShape, StatesBySequence};
pub(crate) use stream_shares::{ShareFactors, StreamShares};

/// Computes the operations of layers. Activations are float32 rows, `[tokens, width]`.
pub(crate) trait Backend: Clone + Debug + Sized + Send + Sync + 'static {
    /// Rows of activations.
    type Act: Activations;
    /// A projection: its weight, its bias and the factors of adapters.
    type Matrix: Debug + Send + Sync;
    /// A vector of numbers, such as the weights of a norm or attention sinks. Clones share it.
    type Vector: Clone + Debug + Send + Sync;
    /// The state that a layer keeps of a sequence.
    type State: State;
    /// Rotary angles of the tokens of a pass.
    type Angles: Debug + Send;
    /// Experts of a layer, prepared for a backend that does the routing itself.
    type Experts: RoutedExperts<Self::Act>;
    /// The way in which the passes of a stage are computed.
    type Execution: PassExecution<Self>;

    /// Returns how many of `tokens` one pass may append at most to a sequence of `length`.
    fn chunk(&self, heads: HeadCounts, length: usize, tokens: usize) -> usize;

    /// Prepares a projection.
    fn matrix(&self, source: MatrixSource<Self>) -> Result<Self::Matrix>;
    /// Prepares a vector.
    fn vector(&self, numbers: Vec<f32>) -> Result<Self::Vector>;
    /// Creates the state of a layer for a new sequence.
    fn state(&self, shape: StateShape) -> Result<Self::State>;
    /// Prepares experts, with the rule that chooses among them. Returns `None` if the backend
    /// cannot choose experts itself; the caller then chooses them.
    fn experts(&self, _experts: &ExpertsOf<'_, Self>) -> Result<Option<Self::Experts>> {
        Ok(None)
    }

    /// Creates rows, `[rows, width]`, that `fill` writes.
    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Self::Act>;
    /// Calls `each` with some rows, in order.
    fn read(&self, x: &Self::Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;
    /// Returns some rows, in the given order.
    fn select(&self, x: &Self::Act, rows: &[usize]) -> Result<Self::Act>;

    /// Computes `x · Wᵀ + b` for several projections of the same rows.
    fn project<'a, const N: usize>(&'a self, matrices: [&'a Self::Matrix; N], x: &Self::Act) -> Result<[Self::Act; N]> {
        self.project_runs(&[Run { by: 0, rows: 0..x.count() }], |_| matrices, x)
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
    /// Computes weighted sums of the parts of each row: `[tokens, parts · width]` to `[tokens, sums
    /// · width]`, with weights `[tokens, sums · parts]`.
    fn mix(&self, x: &Self::Act, weights: &Self::Act, parts: usize) -> Result<Self::Act>;
    /// Makes shares of streams: `[tokens, numbers]` to `[tokens, made]`.
    fn stream_shares(&self, rule: &StreamShares<Self>, x: &Self::Act) -> Result<Self::Act>;
    /// Scales each row to the root mean square of the same row of `of`.
    fn with_magnitude(&self, x: Self::Act, of: &Self::Act) -> Result<Self::Act>;
    /// Subtracts from each row its mean and `deviations` of its standard deviations, and replaces
    /// negative elements by 0.
    fn excess(&self, x: Self::Act, deviations: f32) -> Result<Self::Act>;
    /// Adds each weighted row of `y` to a row of `x`: `x[rows[i]] += weights[i] · y[i]`.
    fn scatter(&self, x: Self::Act, y: &Self::Act, rows: &[usize], weights: &[f32]) -> Result<Self::Act>;

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
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Self::Act>;
    /// Appends the keys of an indexer to the sequences, then chooses the blocks to which their
    /// tokens attend. Returns the choice for each sequence; `None` if its tokens attend to all
    /// positions.
    fn choose_blocks(
        &self,
        choice: &BlockChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>>;
    /// Makes entries of values and gates, `[tokens, value_width]` each. Returns `[tokens, width]`:
    /// the entries at those tokens that complete a segment, else zeros. Past values and gates are
    /// kept in the sequences' recurrent states.
    fn compress(
        &self,
        compression: &Compression<Self>,
        values: &Self::Act,
        gates: &Self::Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Self::Act>;
    /// Appends the rows of those tokens that complete a segment to the sequences' entries.
    fn keep_entries(&self, rows: &Self::Act, sequences: &mut LayerSequences<'_, Self>) -> Result<()>;
    /// Chooses the entries to which the tokens of the sequences attend. Returns the choice for each
    /// sequence; `None` if its tokens attend to all entries.
    fn choose_entries(
        &self,
        choice: &EntryChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>>;
    /// Computes a causal convolution of each channel over positions, with weights `[width,
    /// kernel]`. Its past inputs, `[kernel - 1, width]`, are kept in the sequences' recurrent
    /// states, from element `convolution.at` on.
    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Self::Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Self::Act>;
    /// Computes a linear recurrence over positions, `[tokens, value_heads · value_dim]`. The
    /// matrices of its heads, `[value_heads, key_dim, value_dim]`, are the first part of the
    /// sequences' recurrent states.
    fn recur(
        &self,
        recurrence: &Recurrence<Self>,
        inputs: RecurrenceInputs<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
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
}

/// Smallest mean square by which rows are divided to scale them to another magnitude.
pub(crate) const LEAST_SQUARE: f32 = 1e-5;

/// Largest numbers of query heads of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadCounts {
    /// Of all layers.
    pub(crate) all: usize,
    /// Of layers without [plain scores](StateShape::has_plain_scores), for which devices have no
    /// kernels; 0 if there are no such layers.
    pub(crate) without_kernels: usize,
}

/// Rows of activations.
pub(crate) trait Activations: Debug + Send {
    /// Returns the number of rows.
    fn count(&self) -> usize;
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
    /// Number of positions of a chunk, beyond which a token does not see.
    pub(crate) chunk: Option<usize>,
    pub(crate) causal: bool,
    /// Whether the rows of a picture see only those before them in any case.
    pub(crate) has_causal_pictures: bool,
    /// Whether the states already have the keys and values of the tokens; the key and value
    /// arguments are then ignored.
    pub(crate) reads_only: bool,
    /// `[heads]`.
    pub(crate) sinks: Option<&'a B::Vector>,
    /// Bias of the scores, after their bound.
    pub(crate) position_bias: Option<&'a PositionBias>,
    /// Chooses the positions to which a token attends. `None`: all that it sees, or the
    /// positions that were chosen before.
    pub(crate) indexer: Option<IndexQueries<'a, B>>,
    /// The positions that were chosen before, for each sequence; none of them if tokens attend to
    /// all positions that they see.
    pub(crate) chosen: Option<&'a [Option<ChosenPositions>]>,
    /// Compressed entries.
    pub(crate) entries: Option<AttendEntries<'a, B>>,
}

impl<B: Backend> Attend<'_, B> {
    /// See [`StateShape::has_plain_scores`].
    pub(crate) fn has_plain_scores(&self) -> bool {
        self.position_bias.is_none() && self.indexer.is_none() && self.chosen.is_none() && self.entries.is_none()
    }

    /// Whether tokens of a span see only those before them.
    pub(crate) fn is_causal(&self, span: Span) -> bool {
        self.causal && (self.has_causal_pictures || !span.is_bidirectional)
    }

    /// Returns the positions that a token attends to; `token` is its index in the span.
    pub(crate) fn seen(&self, span: Span, token: usize) -> Range<usize> {
        let own = span.position + token;
        let of_window = self.window.map_or(0, |window| (own + 1).saturating_sub(window));
        let of_chunk = self.chunk.map_or(0, |chunk| own - own % chunk);
        let to = match self.window {
            _ if self.is_causal(span) => own + 1,
            Some(window) => span.end().min(own + window),
            None => span.end(),
        };
        of_window.max(of_chunk)..to
    }
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
