//! Walking over blocks, and reading their fields.

use super::half;

/// Decodes block by block. Lengths are the caller's promise: whole blocks, and as many numbers.
#[inline(always)]
pub(super) fn decode_blocks<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks();
    let (out, _) = out.as_chunks_mut();
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

/// Encodes block by block, with the same promise.
#[inline(always)]
pub(super) fn encode_blocks<const ELEMENTS: usize, const BYTES: usize>(
    row: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; ELEMENTS], &mut [u8; BYTES]),
) {
    let (row, _) = row.as_chunks();
    let (blocks, _) = out.as_chunks_mut();
    for (numbers, block) in row.iter().zip(blocks) {
        encode(numbers, block);
    }
}

/// The `LENGTH` bytes from `AT` on. Out of bounds does not compile.
#[inline(always)]
pub(super) fn field<const AT: usize, const LENGTH: usize, const BYTES: usize>(block: &[u8; BYTES]) -> &[u8; LENGTH] {
    const { assert!(AT + LENGTH <= BYTES) };
    block[AT..].first_chunk().expect("invariant: within the block")
}

/// The half precision number at `AT`.
#[inline(always)]
pub(super) fn half_at<const AT: usize, const BYTES: usize>(block: &[u8; BYTES]) -> f32 {
    half::to_f32(u16::from_le_bytes(*field::<AT, 2, BYTES>(block)))
}

/// The `index`th little-endian 16-bit number.
#[inline(always)]
pub(super) fn u16_of(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

/// The `index`th little-endian 32-bit number.
#[inline(always)]
pub(super) fn u32_of(bytes: &[u8], index: usize) -> u32 {
    u32::from(u16_of(bytes, 2 * index)) | u32::from(u16_of(bytes, 2 * index + 1)) << 16
}
