//! Encoding and decoding rows of weights: pure functions over slices.
//!
//! Decoding is exact: the same float32 bits as the reference implementation of each format gives. Encoding is exact too
//! where the reference is deterministic: MLX's CPU backend for the affine and microscaled types, ggml's
//! `quantize_row_*_ref` for its blocks.

mod affine;
mod block_fp8;
mod float;
mod ggml;
mod micro;

use crate::{Dtype, Encoding, Weight};

/// The version of the encoders: results of another one are not looked for. To be raised with every change of their
/// output.
pub const VERSION: u32 = 1;

/// Rows of an encoded weight, array by array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Codes.
    pub data: Vec<u8>,
    /// Scales; empty where they are inside of the codes.
    pub scale: Vec<u8>,
    /// Biases; empty where there are none.
    pub bias: Vec<u8>,
}

/// What an encoder needs to know besides the numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// What to encode to.
    pub encoding: Encoding,
    /// The element type of the source: F32, F16 or BF16. Affine scales and biases are kept in it, and microscaled scales
    /// are rounded to it on their way.
    pub float: Dtype,
    /// The multiplier of the whole tensor (nvfp4 only): the largest magnitude in it, divided by 2688.
    pub global_scale: Option<f32>,
}

/// Whether there is an encoder for it.
pub fn can_encode(encoding: Encoding) -> bool {
    unreachable!("not written yet");
}

/// Encodes whole rows of `columns` and appends them. Large inputs are shared between cores.
///
/// # Panics
/// Where [`can_encode`] says no, or the rows are not whole groups.
pub fn encode(source: &[f32], columns: usize, target: Target, out: &mut Encoded) {
    unreachable!("not written yet");
}

/// Encodes the rows of a weight anew and appends them, without expanding more than a few rows at a time for each core.
///
/// # Panics
/// As [`encode`].
pub fn transcode(source: &Weight<'_>, target: Target, out: &mut Encoded) {
    unreachable!("not written yet");
}

pub(crate) fn decode_row(weight: &Weight<'_>, row: usize, out: &mut [f32]) {
    match weight.encoding {
        Encoding::Plain(dtype) => float::decode(dtype, weight.row_of(weight.data, row), out),
        Encoding::Blocks(kind) => ggml::decode(kind, weight.row_of(weight.data, row), out),
        Encoding::Affine { bits, group } => affine::decode_row(weight, bits, group as usize, row, out),
        Encoding::Micro(micro) => micro::decode_row(weight, micro, row, out),
        Encoding::BlockFp8 { rows, columns } => {
            block_fp8::decode_row(weight, rows as usize, columns as usize, row, out);
        }
    }
}
