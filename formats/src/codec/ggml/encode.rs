//! Encoders: they compute the same codes for each block as ggml's reference.
//!
//! The reference sums in the order of the elements, and so does this code. Only sub-blocks, or
//! elements that do not depend on each other, are processed in parallel. No encoder allocates
//! memory.

#![expect(clippy::cast_sign_loss, reason = "codes are cut down to bytes as the reference does it, also negative ones")]

mod extremes;
mod lanes;
mod rounding;

mod codebook;
mod fit;
mod flat;
mod super_block;
mod ternary;

use super::layout::each_block;
use crate::GgmlType;
#[cfg(target_arch = "x86_64")]
pub(super) use lanes::avx2::Avx2;
pub(super) use lanes::{Lanes, Portable};

/// Encodes a row with lanes of type `L`.
///
/// # Panics
/// If [`GgmlType::encoder`] is [`Encoder::Absent`](crate::Encoder::Absent).
#[inline(always)]
pub(super) fn encode_with<L: Lanes>(kind: GgmlType, row: &[f32], out: &mut [u8]) {
    match kind {
        GgmlType::Q4_0 => each_block!(row, out, flat::q4_0::<L>),
        GgmlType::Q4_1 => each_block!(row, out, flat::q4_1::<L>),
        GgmlType::Q5_0 => each_block!(row, out, flat::q5_0::<L>),
        GgmlType::Q5_1 => each_block!(row, out, flat::q5_1::<L>),
        GgmlType::Q8_0 => each_block!(row, out, flat::q8_0::<L>),
        GgmlType::Q2_K => each_block!(row, out, super_block::q2_k::<L>),
        GgmlType::Q3_K => each_block!(row, out, super_block::q3_k::<L>),
        GgmlType::Q4_K => each_block!(row, out, super_block::q4_k::<L>),
        GgmlType::Q5_K => each_block!(row, out, super_block::q5_k::<L>),
        GgmlType::Q6_K => each_block!(row, out, super_block::q6_k::<L>),
        GgmlType::IQ4_NL => codebook::iq4_nl::<L>(row, out),
        GgmlType::IQ4_XS => each_block!(row, out, codebook::iq4_xs::<L>),
        GgmlType::MXFP4 => each_block!(row, out, codebook::mxfp4::<L>),
        GgmlType::TQ1_0 => each_block!(row, out, ternary::tq1_0::<L>),
        GgmlType::TQ2_0 => each_block!(row, out, ternary::tq2_0::<L>),
        kind => unreachable!("invariant: `EncodingRows::all` refused {kind}, which has no encoder"),
    }
}
