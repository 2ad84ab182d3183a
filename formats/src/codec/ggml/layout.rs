//! Iteration over blocks, and access to their fields.

use super::half;

/// Applies a function to each pair of a block and its elements. The caller provides whole blocks,
/// and the same number on both sides.
///
/// This is a macro because a function passed as an argument might not be inlined, and would then
/// not be compiled for the caller's instruction set.
macro_rules! each_block {
    ($from:expr, $to:expr, $code:expr) => {
        for (from, to) in $from.as_chunks().0.iter().zip($to.as_chunks_mut().0) {
            $code(from, to);
        }
    };
}
pub(super) use each_block;

/// Returns the `LENGTH` bytes at `AT`. An access out of bounds does not compile.
#[inline(always)]
pub(super) fn field<const AT: usize, const LENGTH: usize, const BYTES: usize>(block: &[u8; BYTES]) -> &[u8; LENGTH] {
    const { assert!(AT + LENGTH <= BYTES) };
    block[AT..].first_chunk().expect("invariant: within the block")
}

/// Returns the half-precision number at `AT`.
#[inline(always)]
pub(super) fn half_at<const AT: usize, const BYTES: usize>(block: &[u8; BYTES]) -> f32 {
    half::to_f32(u16::from_le_bytes(*field::<AT, 2, BYTES>(block)))
}

/// Returns the `index`th little-endian 16-bit number.
#[inline(always)]
pub(super) fn u16_of(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

/// Returns the `index`th little-endian 32-bit number.
#[inline(always)]
pub(super) fn u32_of(bytes: &[u8], index: usize) -> u32 {
    u32::from(u16_of(bytes, 2 * index)) | u32::from(u16_of(bytes, 2 * index + 1)) << 16
}
