//! Types whose elements are plain numbers.

/// Decodes elements of `BYTES` bytes with `number`.
#[inline(always)]
pub(super) fn decode<const BYTES: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; BYTES]) -> f32) {
    let (elements, _) = bytes.as_chunks();
    for (element, out) in elements.iter().zip(out) {
        *out = number(*element);
    }
}
