//! Rows of keys and values as they are stored in the cache, and attention over them.
//!
//! | type | a row of n elements |
//! |---|---|
//! | `f32`, `f16`, `bf16` | the elements, little-endian |
//! | `q8_0` | blocks of 32, zero-padded: `d` as `f16`, then 32 codes `q` of 8 bits; `x = d·q` |
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "SIMD"))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use half::{bf16, f16};
use protocol::KvType;

use super::instructions::Instructions;

/// Number of elements that are read at a time.
const BLOCK: usize = 32;
/// Size of a block of `q8_0`, in bytes.
const Q8_0_BYTES: usize = 34;

/// The cache types as const parameters of kernels.
#[cfg(target_arch = "x86_64")]
mod kind {
    pub(super) const F32: u8 = 0;
    pub(super) const F16: u8 = 1;
    pub(super) const BF16: u8 = 2;
    pub(super) const Q8_0: u8 = 3;

    /// Returns the size of a block in bytes.
    pub(super) const fn block_bytes(kind: u8) -> usize {
        match kind {
            F32 => 4 * super::BLOCK,
            Q8_0 => super::Q8_0_BYTES,
            _ => 2 * super::BLOCK,
        }
    }
}

/// Rows of consecutive positions of one head, or the first elements of such rows.
#[derive(Clone, Copy, Debug)]
pub struct CacheRows<'a> {
    kv_type: KvType,
    /// Number of elements of each row that are used.
    columns: usize,
    /// Distance between rows, in bytes.
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> CacheRows<'a> {
    /// Creates a view of whole rows of `columns` elements.
    pub fn new(kv_type: KvType, columns: usize, bytes: &'a [u8]) -> Self {
        let row_bytes = row_bytes(kv_type, columns);
        assert!(columns > 0 && bytes.len().is_multiple_of(row_bytes), "whole rows");
        Self { kv_type, columns, row_bytes, bytes }
    }

    /// Returns a view of the first elements of each row.
    pub fn first(self, columns: usize) -> Self {
        assert!(columns <= self.columns, "no more than there are");
        Self { columns, ..self }
    }

    /// Returns the number of rows.
    pub fn len(self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Returns whether there are no rows.
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// `out[i] = Σ query[c] · self[i, c]`.
    pub fn dot(self, instructions: Instructions, query: &[f32], out: &mut [f32]) {
        debug_assert!(query.len() == self.columns && out.len() == self.len());
        #[cfg(target_arch = "x86_64")]
        if self.columns.is_multiple_of(BLOCK) && instructions.has_avx2() {
            // SAFETY: the features were detected.
            return unsafe { avx2::dot(self, query, out) };
        }
        for (out, row) in out.iter_mut().zip(self.bytes.chunks_exact(self.row_bytes)) {
            *out = query.iter().enumerate().map(|(at, x)| x * element(self.kv_type, row, at)).sum();
        }
    }

    /// `out[q, i] = Σ queries[q, c] · self[i, c]`; `stride` is the distance between rows of `out`.
    pub fn dots(self, instructions: Instructions, queries: &[f32], out: &mut [f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.columns.is_multiple_of(BLOCK) && instructions.has_avx512() {
            // SAFETY: the features were detected.
            return unsafe { avx512::dots(self, queries, out, stride) };
        }
        for (query, out) in queries.chunks_exact(self.columns).zip(out.chunks_mut(stride)) {
            self.dot(instructions, query, &mut out[..self.len()]);
        }
    }

    /// `out[q, c] += Σ weights[q, i] · self[i, c]`, with the row strides of `weights` and `out`.
    pub fn mixes(
        self,
        instructions: Instructions,
        weights: &[f32],
        weights_stride: usize,
        out: &mut [f32],
        stride: usize,
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.columns.is_multiple_of(BLOCK) && instructions.has_avx512() {
            // SAFETY: the features were detected.
            return unsafe { avx512::mixes(self, weights, weights_stride, out, stride) };
        }
        for (weights, out) in weights.chunks(weights_stride).zip(out.chunks_mut(stride)) {
            self.mix(instructions, &weights[..self.len()], &mut out[..self.columns]);
        }
    }

    /// `out[c] += Σ weights[i] · self[i, c]`.
    pub fn mix(self, instructions: Instructions, weights: &[f32], out: &mut [f32]) {
        debug_assert!(out.len() == self.columns && weights.len() == self.len());
        #[cfg(target_arch = "x86_64")]
        if self.columns.is_multiple_of(BLOCK) && instructions.has_avx2() {
            // SAFETY: the features were detected.
            return unsafe { avx2::mix(self, weights, out) };
        }
        for (weight, row) in weights.iter().zip(self.bytes.chunks_exact(self.row_bytes)) {
            for (at, out) in out.iter_mut().enumerate() {
                *out += weight * element(self.kv_type, row, at);
            }
        }
    }

    /// Decodes the whole blocks of each row by vectors; returns the number of their elements.
    fn decode_blocks(self, instructions: Instructions, out: &mut [f32]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if instructions.has_avx2() {
            // SAFETY: the features were detected.
            unsafe { avx2::decode(self, out) };
            return self.columns / BLOCK * BLOCK;
        }
        let _ = (instructions, out);
        0
    }

    /// Decodes all elements, `[rows, columns]`.
    pub fn decode(self, instructions: Instructions, out: &mut [f32]) {
        assert!(out.len() == self.len() * self.columns, "room for all rows");
        let decoded = self.decode_blocks(instructions, out);
        if decoded == self.columns {
            return;
        }
        for (out, row) in out.chunks_exact_mut(self.columns).zip(self.bytes.chunks_exact(self.row_bytes)) {
            for (at, out) in out.iter_mut().enumerate().skip(decoded) {
                *out = element(self.kv_type, row, at);
            }
        }
    }
}

/// Returns the size of a row in bytes.
pub fn row_bytes(kv_type: KvType, columns: usize) -> usize {
    kv_type.row_bytes(columns as u64) as usize
}

/// Encodes a row for the cache; `out` has [`row_bytes`] bytes. NaN and infinity never become finite
/// numbers.
pub fn encode_row(kv_type: KvType, row: &[f32], out: &mut [u8]) {
    match kv_type {
        KvType::F32 => put(row, out, f32::to_le_bytes),
        KvType::F16 => put(row, out, |x| f16::from_f32(x).to_le_bytes()),
        KvType::Bf16 => put(row, out, |x| bf16::from_f32(x).to_le_bytes()),
        KvType::Q8_0 => {
            for (x, out) in row.chunks(BLOCK).zip(out.chunks_exact_mut(Q8_0_BYTES)) {
                encode_block(x, out);
            }
        }
    }
}

fn put<const N: usize>(row: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (x, out) in row.iter().zip(out.chunks_exact_mut(N)) {
        out.copy_from_slice(&bytes(*x));
    }
}

fn encode_block(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    // Codes cannot represent NaN or infinity, so the scale becomes NaN.
    let scale = if x.iter().all(|x| x.is_finite()) { largest / 127.0 } else { f32::NAN };
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    codes.fill(0);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// Decodes an element of a row, on any machine.
fn element(kv_type: KvType, row: &[u8], at: usize) -> f32 {
    let pair = |at: usize| [row[at], row[at + 1]];
    match kv_type {
        KvType::F32 => f32::from_le_bytes([row[4 * at], row[4 * at + 1], row[4 * at + 2], row[4 * at + 3]]),
        KvType::F16 => f16::from_le_bytes(pair(2 * at)).to_f32(),
        KvType::Bf16 => bf16::from_le_bytes(pair(2 * at)).to_f32(),
        KvType::Q8_0 => {
            let block = at / BLOCK * Q8_0_BYTES;
            f16::from_le_bytes(pair(block)).to_f32() * f32::from(row[block + 2 + at % BLOCK].cast_signed())
        }
    }
}

/// Replaces each x with `exp(x - m)`, where `m` is the largest of them, at least `floor`. Returns
/// `m` and the sum.
pub fn exponentials_below(instructions: Instructions, x: &mut [f32], floor: f32) -> (f32, f32) {
    let largest = x.iter().copied().fold(floor, f32::max);
    (largest, exponentials(instructions, x, largest))
}

/// Replaces each x with `exp(x - largest)`; returns their sum.
pub fn exponentials(instructions: Instructions, x: &mut [f32], largest: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if instructions.has_avx2() {
        // SAFETY: the features were detected.
        return unsafe { avx2::exponentials(x, largest) };
    }
    let _ = instructions;
    exponentials_generic(x, largest)
}

fn exponentials_generic(x: &mut [f32], largest: f32) -> f32 {
    let mut sum = 0.0;
    for x in x {
        *x = (*x - largest).exp();
        sum += *x;
    }
    sum
}

#[cfg(test)]
mod tests;
