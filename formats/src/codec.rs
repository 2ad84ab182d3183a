//! Encoding and decoding rows of weights: pure functions over slices.
//!
//! Decoding is exact: it yields the same float32 bits as the reference implementation of each
//! format. Encoding is exact too where the reference is deterministic: MLX's CPU backend for the
//! affine and microscaled types, ggml's `quantize_row_*_ref` for its blocks.

mod affine;
mod bits;
mod block_fp8;
mod float;
mod ggml;
mod micro;
mod rows;
mod simd;
mod small_float;
mod target;

pub use ggml::{codebook, grid};
pub use target::{EncodedBuffers, EncodingTarget};

use rows::{EncodingRows, NumberSource};

use crate::encoding::Micro;
use crate::{Dtype, Encoding, Weight};

/// Version of the encoders. Cached results of another version are not reused. Increment it with
/// every change of their output.
pub const VERSION: u32 = 1;

/// Rows of an encoded weight, array by array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Codes.
    pub data: Vec<u8>,
    /// Scales; empty if they are inside the codes.
    pub scale: Vec<u8>,
    /// Biases; empty if there are none.
    pub bias: Vec<u8>,
}

impl Encoded {
    /// Appends space for more rows and returns it.
    fn extend(&mut self, bytes: target::Bytes) -> EncodedBuffers<'_> {
        fn more(bytes: &mut Vec<u8>, count: usize) -> &mut [u8] {
            let start = bytes.len();
            bytes.resize(start + count, 0);
            &mut bytes[start..]
        }
        EncodedBuffers {
            data: more(&mut self.data, bytes.data),
            scale: more(&mut self.scale, bytes.scale),
            bias: more(&mut self.bias, bytes.bias),
        }
    }
}

/// Whether the values of a weight can be decoded to float32.
pub fn can_decode(encoding: Encoding) -> bool {
    let Encoding::Plain(dtype) = encoding else { return true };
    !matches!(dtype, Dtype::F4 | Dtype::F6_E2M3 | Dtype::F6_E3M2 | Dtype::F8_E4M3Fnuz | Dtype::F8_E5M2Fnuz | Dtype::C64)
}

/// Whether the encoding has an encoder.
pub fn can_encode(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Plain(dtype) => float::can_encode(dtype),
        Encoding::Blocks(kind) => ggml::can_encode(kind),
        Encoding::Affine { bits, group } => matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128),
        Encoding::Micro(_) => true,
        Encoding::BlockFp8 { .. } => false,
    }
}

/// Returns the largest magnitude, for [`EncodingTarget::global_scale`]. NaN is ignored; an empty
/// slice gives 0.
pub fn largest_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()))
}

/// Unpacks the codes of an affine or microscaled row into one byte each, for kernels that compute
/// with codes. The codes have `BITS` bits each and form a bit stream; the first code is in the
/// lowest bits of the first byte. The length of `out` is a multiple of eight.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the caller is compiled for instructions that this crate does not know")]
pub fn unpack_codes<const BITS: usize>(packed: &[u8], out: &mut [u8]) {
    bits::unpack::<BITS>(packed, out);
}

/// Returns the multiplier of the elements of a microscaled group: the value of the scale's code,
/// times the global scale of the tensor.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the caller is compiled for instructions that this crate does not know")]
pub fn micro_scale(micro: Micro, code: u8, global: Option<f32>) -> f32 {
    micro::multiplier(micro, code, global)
}

/// Computes the multiplier of the E4M3 elements of each group of some rows. `out` has one element
/// for each group of each row.
///
/// # Panics
/// If the weight has other elements, a row does not exist, or `out` has another length.
pub fn e4m3_scales(weight: &Weight<'_>, rows: impl ExactSizeIterator<Item = usize>, out: &mut [f32]) {
    let groups = weight.columns().div_ceil(weight.encoding().group_size() as usize);
    assert_eq!(out.len(), rows.len() * groups, "one for each group");
    if out.is_empty() {
        return;
    }
    match weight.encoding() {
        Encoding::Micro(Micro::Mxfp8) => micro::powers(weight, groups, rows, out),
        Encoding::BlockFp8 { rows: height, columns: width } => {
            for (row, out) in rows.zip(out.chunks_exact_mut(groups)) {
                block_fp8::scales(weight, height as usize, width as usize, row, out);
            }
        }
        other => panic!("elements of {other} are not E4M3"),
    }
}

/// Returns the value of an E4M3 code.
pub fn e4m3(code: u8) -> f32 {
    small_float::e4m3(code)
}

/// Encodes whole rows of `columns` elements and appends them. Large inputs are divided among the
/// cores.
///
/// # Panics
/// If [`can_encode`] returns false, the rows are not whole groups, or the source's type is not F32,
/// F16 or BF16.
pub fn encode(source: &[f32], columns: usize, target: EncodingTarget, out: &mut Encoded) {
    let rows = EncodingRows::all(NumberSource::Floats(source), columns, target);
    rows.encode(out.extend(rows.bytes()));
}

/// Re-encodes the rows of a weight and appends them. Each core expands only a few rows at a time.
///
/// # Panics
/// As [`encode`], and if [`can_decode`] returns false for the source.
pub fn transcode(source: &Weight<'_>, target: EncodingTarget, out: &mut Encoded) {
    let rows = EncodingRows::all(NumberSource::Weight(source), source.columns(), target);
    rows.encode(out.extend(rows.bytes()));
}

/// Like [`transcode`], but writes into existing memory: a mapped file, or a buffer that is reused.
///
/// # Panics
/// As [`transcode`], and if an array has another length than the encoded rows.
pub fn transcode_into(source: &Weight<'_>, target: EncodingTarget, out: EncodedBuffers<'_>) {
    let rows = EncodingRows::all(NumberSource::Weight(source), source.columns(), target);
    let expected = rows.bytes();
    assert_eq!(
        (out.data.len(), out.scale.len(), out.bias.len()),
        (expected.data, expected.scale, expected.bias),
        "bytes of codes, scales and biases"
    );
    rows.encode(out);
}

fn decode_row(weight: &Weight<'_>, row: usize, out: &mut [f32]) {
    match weight.encoding {
        Encoding::Plain(dtype) => float::decode(dtype, weight.row_of(weight.data, row), out),
        Encoding::Blocks(kind) => ggml::decode(kind, weight.row_of(weight.data, row), out),
        Encoding::Affine { bits, group } => {
            let layout = affine::CodeLayout { bits: usize::from(bits), group: group as usize };
            affine::decode_row(weight, layout, row, out);
        }
        Encoding::Micro(micro) => micro::decode_row(weight, micro, row, out),
        Encoding::BlockFp8 { rows, columns } => {
            block_fp8::decode_row(weight, rows as usize, columns as usize, row, out);
        }
    }
}

impl Weight<'_> {
    /// Decodes one row, counted over all matrices, to float32. The result is exactly that of the
    /// encoding's definition, with one rounding per operation.
    ///
    /// # Panics
    /// If the row does not exist, or `out` does not have the length of a row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows() && out.len() == self.columns, "row {row} of {} into {}", self.rows(), out.len());
        decode_row(self, row, out);
    }

    /// Decodes all rows.
    ///
    /// # Panics
    /// If `out` does not have the weight's number of elements.
    pub fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows() * self.columns, "as many numbers as the weight has");
        if self.columns > 0 {
            for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
                self.decode_row(row, out);
            }
        }
    }
}
