//! Arguments of kernels, as `cuda/` declares them: plain structures with the same fields in the
//! same order.

use architectures::Activation;

/// An address in device memory; 0 is a null pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn after(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A structure that kernels take as an argument.
///
/// # Safety
/// The structure is `repr(C)`, and the kernels that take it declare it alike.
#[expect(unsafe_code, reason = "a promise about two declarations")]
pub(crate) unsafe trait Arguments: Copy {}

/// See `formats.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Weight {
    pub(crate) codes: Address,
    pub(crate) scales: Address,
    pub(crate) biases: Address,
    pub(crate) row_bytes: u64,
    pub(crate) global: f32,
    pub(crate) rows: u32,
    pub(crate) row_first: u32,
    pub(crate) row_block: u32,
    pub(crate) row_stride: u32,
    pub(crate) scales_in_row: u32,
    pub(crate) group_rows: u32,
    pub(crate) group_columns: u32,
    pub(crate) float_type: u32,
    pub(crate) unused: u32,
}

/// Values of `float_type`.
pub(crate) const FLOAT32: u32 = 0;
pub(crate) const FLOAT16: u32 = 1;
pub(crate) const BFLOAT16: u32 = 2;
pub(crate) const POWERS: u32 = 4;

/// Greatest number of weights in one product.
pub(crate) const MOST_WEIGHTS: usize = 4;

/// See `products.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct WeightSet {
    pub(crate) weights: [Weight; MOST_WEIGHTS],
    pub(crate) biases: [Address; MOST_WEIGHTS],
}

/// See `products.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Group {
    pub(crate) set: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) unused: u32,
}

/// Values of `purpose`.
pub(crate) const WRITE: u32 = 0;
pub(crate) const ACTIVATE: u32 = 1;
pub(crate) const GATE: u32 = 2;
pub(crate) const ADD: u32 = 3;

/// See `products.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ProductArguments {
    pub(crate) set: WeightSet,
    pub(crate) sets: Address,
    pub(crate) groups: Address,
    pub(crate) x: Address,
    pub(crate) codes: Address,
    pub(crate) factors: Address,
    pub(crate) rows_of_x: Address,
    pub(crate) out: [Address; MOST_WEIGHTS],
    pub(crate) residual: Address,
    pub(crate) out_codes: Address,
    pub(crate) out_factors: Address,
    pub(crate) counters: Address,
    pub(crate) scale: f32,
    pub(crate) limit: f32,
    pub(crate) count: u32,
    pub(crate) tokens: u32,
    pub(crate) columns: u32,
    pub(crate) purpose: u32,
    pub(crate) activation: u32,
    pub(crate) unused: u32,
}

/// See `experts.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RouteArguments {
    pub(crate) logits: Address,
    pub(crate) bias: Address,
    pub(crate) chosen: Address,
    pub(crate) weights: Address,
    pub(crate) places: Address,
    pub(crate) tokens_of_rows: Address,
    pub(crate) groups: Address,
    pub(crate) done: Address,
    pub(crate) scale: f32,
    pub(crate) tokens: u32,
    pub(crate) experts: u32,
    pub(crate) top_k: u32,
    pub(crate) most_groups: u32,
    pub(crate) scores: u32,
    pub(crate) is_normalized: u32,
    pub(crate) group_count: u32,
    pub(crate) kept: u32,
    pub(crate) best: u32,
}

/// See `experts.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MixArguments {
    pub(crate) made: Address,
    pub(crate) places: Address,
    pub(crate) weights: Address,
    pub(crate) sum: Address,
    pub(crate) residual: Address,
    pub(crate) out: Address,
    pub(crate) scale: f32,
    pub(crate) width: u32,
    pub(crate) top_k: u32,
    pub(crate) unused: u32,
}

// SAFETY: as `experts.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for RouteArguments {}
// SAFETY: as `experts.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for MixArguments {}

/// A change of a token's logit x to `y - minus`, where y is `x + bias`, divided by `divisor` if
/// positive, else multiplied by it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Change {
    /// The token.
    pub token: u32,
    /// Added first.
    pub bias: f32,
    /// Positive; 1 has no effect.
    pub divisor: f32,
    /// Subtracted last.
    pub minus: f32,
}

/// See `select.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SelectRow {
    pub(crate) row: u32,
    pub(crate) count: u32,
    pub(crate) first_change: u32,
    pub(crate) changes: u32,
    pub(crate) first_word: u32,
    pub(crate) words: u32,
    pub(crate) has_words: u32,
    pub(crate) unused: u32,
}

/// See `select.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SelectArguments {
    pub(crate) logits: Address,
    pub(crate) rows: Address,
    pub(crate) changes: Address,
    pub(crate) words: Address,
    pub(crate) lists: Address,
    pub(crate) sums: Address,
    pub(crate) out: Address,
    pub(crate) done: Address,
    pub(crate) vocabulary: u32,
    pub(crate) most: u32,
}

// SAFETY: as `select.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for SelectArguments {}

/// See `rows.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct NormArguments {
    pub(crate) x: Address,
    pub(crate) weight: Address,
    pub(crate) bias: Address,
    pub(crate) out: Address,
    pub(crate) codes: Address,
    pub(crate) factors: Address,
    pub(crate) residual: Address,
    pub(crate) next_weight: Address,
    pub(crate) next_out: Address,
    pub(crate) epsilon: f32,
    pub(crate) scale: f32,
    pub(crate) kind: u32,
    pub(crate) width: u32,
    pub(crate) weight_rows: u32,
    pub(crate) next_epsilon: f32,
}

/// See `rows.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MapArguments {
    pub(crate) x: Address,
    pub(crate) y: Address,
    pub(crate) out: Address,
    pub(crate) count: u64,
    pub(crate) scale: f32,
    pub(crate) second: f32,
    pub(crate) kind: u32,
    pub(crate) activation: u32,
    pub(crate) shared: u32,
}

// SAFETY: as `rows.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for MapArguments {}
// SAFETY: as `products.cuh` and `rows.cuh` declare them.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for ProductArguments {}
// SAFETY: as `products.cuh` and `rows.cuh` declare them.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for NormArguments {}

/// See `cache.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Cache {
    pub(crate) kv_heads: u32,
    pub(crate) key_dim: u32,
    pub(crate) value_dim: u32,
    pub(crate) unused: u32,
}

/// See `cache.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) tokens: u32,
    pub(crate) position: u32,
    pub(crate) start: u32,
    pub(crate) block: u32,
    pub(crate) unused: u32,
}

/// See `cache.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Heads {
    pub(crate) x: Address,
    pub(crate) norm: Address,
    pub(crate) cosines: Address,
    pub(crate) sines: Address,
    pub(crate) epsilon: f32,
    pub(crate) count: u32,
    pub(crate) width: u32,
    pub(crate) weight_rows: u32,
    pub(crate) rotary_first: u32,
    pub(crate) half: u32,
    pub(crate) is_interleaved: u32,
    pub(crate) unused: u32,
}

/// See `cache.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct KeepArguments {
    pub(crate) heads: [Heads; 3],
    pub(crate) cache: Cache,
    pub(crate) spans: Address,
    pub(crate) blocks: Address,
    pub(crate) queries: Address,
    pub(crate) tokens: u32,
    pub(crate) unused: u32,
}

/// See `attention.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Queries {
    pub(crate) sequence: u32,
    pub(crate) first: u32,
}

/// See `attention.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AttendArguments {
    pub(crate) cache: Cache,
    pub(crate) spans: Address,
    pub(crate) blocks: Address,
    pub(crate) items: Address,
    pub(crate) queries: Address,
    pub(crate) sinks: Address,
    pub(crate) out: Address,
    pub(crate) codes: Address,
    pub(crate) factors: Address,
    pub(crate) shares: Address,
    pub(crate) done: Address,
    pub(crate) scale: f32,
    pub(crate) soft_cap: f32,
    pub(crate) heads: u32,
    pub(crate) value_width: u32,
    pub(crate) window: u32,
    pub(crate) chunk: u32,
    pub(crate) is_causal: u32,
}

// SAFETY: as `cache.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for KeepArguments {}
// SAFETY: as `attention.cuh` declares it.
#[expect(unsafe_code, reason = "a promise about two declarations")]
unsafe impl Arguments for AttendArguments {}

/// Returns the number of an activation in `products.cuh`.
pub(crate) fn number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::Gelu => 2,
        Activation::Relu => 3,
        Activation::ClampedSilu { .. } => 4,
        Activation::ReluSquared => 5,
        Activation::BoundedSilu { .. } => 6,
        Activation::GeluQuick => 7,
    }
}

/// Returns the limit of an activation that clamps; else 0.
pub(crate) fn limit(activation: Activation) -> f32 {
    activation.limit().map_or(0.0, |limit| limit as f32)
}
