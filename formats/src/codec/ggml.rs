//! GGML blocks: decoding of every type, and encoding of the types that models are quantized to.
//!
//! Results equal those of ggml's C code, bit for bit: `dequantize_row_*` and, without an importance
//! matrix, `quantize_*`. Each operation rounds separately; none are fused. The code is portable. On
//! machines with AVX2, the same code runs compiled for AVX2.

#![expect(clippy::inline_always, reason = "what is inlined into the AVX2 entry is compiled for AVX2")]

mod avx2;
mod layout;

pub mod codebook;
mod encode;
mod flat;
pub mod grid;
mod half;
mod plain;
mod super_block;
mod ternary;

use crate::{Encoder, GgmlType};
use layout::each_block;

/// Decodes whole rows: `bytes` contains whole blocks, and `out` has their number of elements.
pub(super) fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    avx2::decode(kind, bytes, out);
}

/// Whether [`encode`] supports the type.
pub(super) fn can_encode(kind: GgmlType) -> bool {
    kind.encoder() != Encoder::Absent
}

/// Encodes a row of whole blocks; `out` has their number of bytes.
///
/// # Panics
/// If [`can_encode`] returns false.
pub(super) fn encode(kind: GgmlType, row: &[f32], out: &mut [u8]) {
    avx2::encode(kind, row, out);
}

#[inline(always)]
fn decode_with(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::F32 => plain::decode(bytes, out, f32::from_le_bytes),
        GgmlType::F16 => plain::decode(bytes, out, |number| half::to_f32(u16::from_le_bytes(number))),
        GgmlType::BF16 => {
            plain::decode(bytes, out, |number| f32::from_bits(u32::from(u16::from_le_bytes(number)) << 16));
        }
        GgmlType::F64 => plain::decode(bytes, out, |number| f64::from_le_bytes(number) as f32),
        GgmlType::I8 => plain::decode(bytes, out, |number| f32::from(i8::from_le_bytes(number))),
        GgmlType::I16 => plain::decode(bytes, out, |number| f32::from(i16::from_le_bytes(number))),
        GgmlType::I32 => plain::decode(bytes, out, |number| i32::from_le_bytes(number) as f32),
        GgmlType::I64 => plain::decode(bytes, out, |number| i64::from_le_bytes(number) as f32),
        GgmlType::Q1_0 => each_block!(bytes, out, flat::q1_0),
        GgmlType::Q2_0 => each_block!(bytes, out, flat::q2_0),
        GgmlType::Q4_0 => each_block!(bytes, out, flat::q4_0),
        GgmlType::Q4_1 => each_block!(bytes, out, flat::q4_1),
        GgmlType::Q5_0 => each_block!(bytes, out, flat::q5_0),
        GgmlType::Q5_1 => each_block!(bytes, out, flat::q5_1),
        GgmlType::Q8_0 => each_block!(bytes, out, flat::q8_0),
        GgmlType::Q8_1 => each_block!(bytes, out, flat::q8_1),
        GgmlType::Q8_K => each_block!(bytes, out, flat::q8_k),
        GgmlType::Q2_K => each_block!(bytes, out, super_block::q2_k),
        GgmlType::Q3_K => each_block!(bytes, out, super_block::q3_k),
        GgmlType::Q4_K => each_block!(bytes, out, super_block::q4_k),
        GgmlType::Q5_K => each_block!(bytes, out, super_block::q5_k),
        GgmlType::Q6_K => each_block!(bytes, out, super_block::q6_k),
        GgmlType::TQ1_0 => each_block!(bytes, out, ternary::tq1_0),
        GgmlType::TQ2_0 => each_block!(bytes, out, ternary::tq2_0),
        GgmlType::MXFP4 => each_block!(bytes, out, codebook::mxfp4),
        GgmlType::NVFP4 => each_block!(bytes, out, codebook::nvfp4),
        GgmlType::IQ4_NL => each_block!(bytes, out, codebook::iq4_nl),
        GgmlType::IQ4_XS => each_block!(bytes, out, codebook::iq4_xs),
        GgmlType::IQ1_S => each_block!(bytes, out, grid::iq1_s),
        GgmlType::IQ1_M => each_block!(bytes, out, grid::iq1_m),
        GgmlType::IQ2_XXS => each_block!(bytes, out, grid::iq2_xxs),
        GgmlType::IQ2_XS => each_block!(bytes, out, grid::iq2_xs),
        GgmlType::IQ2_S => each_block!(bytes, out, grid::iq2_s),
        GgmlType::IQ3_XXS => each_block!(bytes, out, grid::iq3_xxs),
        GgmlType::IQ3_S => each_block!(bytes, out, grid::iq3_s),
    }
}

#[cfg(test)]
mod tests;
