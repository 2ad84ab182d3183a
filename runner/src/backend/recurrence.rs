//! Linear recurrences: mixers whose state of a head is a matrix that each token decays and adds a
//! rank-one matrix to.

use architectures::HeadPairing;

use super::Backend;

/// Added to the squared length of the queries and keys of a delta rule, before they are divided by
/// their length.
pub(crate) const LENGTH_EPSILON: f32 = 1e-6;

/// A linear recurrence. With `Δ = softplus(decay + decay_bias)` and the state `S` of a head, each
/// token computes `S ← exp(-decay_rate · Δ) · S`, adds a matrix by its [rule](RecurrenceRule), and
/// then `y = Sᵀ · query`. A head has one Δ and one rate, or one of them for each row of `S`.
#[derive(Debug)]
pub(crate) struct Recurrence<B: Backend> {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Key head of each value head.
    pub(crate) pairing: HeadPairing,
    pub(crate) rule: RecurrenceRule<B>,
    /// 1, or `key_dim` if each row of a head's matrix has its own rate.
    pub(crate) rates_per_head: usize,
    /// `[value_heads · rates_per_head]`.
    pub(crate) decay_rate: B::Vector,
    /// 1, or `key_dim` if each row of a head's matrix has its own Δ; only the delta rule has it.
    pub(crate) steps_per_head: usize,
    /// `[value_heads · steps_per_head]`.
    pub(crate) decay_bias: B::Vector,
}

/// The matrix that a token adds to the state.
#[derive(Debug)]
pub(crate) enum RecurrenceRule<B: Backend> {
    /// Gated delta rule, see [`architectures::DeltaNet`]: `k ⊗ β · (v - Sᵀk)`, with
    /// `β = scale · sigmoid(beta)`. Queries and keys are divided by their length, queries by the
    /// root of `key_dim` too.
    Delta {
        /// Factor of β.
        scale: f32,
    },
    /// State space model, see [`architectures::StateSpace`] and [`architectures::SelectiveScan`]:
    /// `k ⊗ Δ · v`.
    StateSpace {
        /// Bounds of Δ.
        limits: [f32; 2],
        /// `[value_heads]`: factor of the value that is added to the output.
        skip: B::Vector,
    },
}

/// Inputs of a recurrence.
pub(crate) struct RecurrenceInputs<'a, B: Backend> {
    /// `[tokens, key_heads · key_dim]`.
    pub(crate) query: &'a B::Act,
    /// `[tokens, key_heads · key_dim]`.
    pub(crate) key: &'a B::Act,
    /// `[tokens, value_heads · value_dim]`.
    pub(crate) value: &'a B::Act,
    /// `[tokens, value_heads]`; only the delta rule has it.
    pub(crate) beta: Option<&'a B::Act>,
    /// `[tokens, value_heads · steps_per_head]`; `None` if all Δ are 1, which the delta rule does
    /// not have.
    pub(crate) decay: Option<&'a B::Act>,
}
