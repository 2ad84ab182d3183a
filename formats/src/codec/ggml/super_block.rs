//! K-quants: super-blocks of 256 elements, made of 8 or 16 sub-blocks. Their scales are small
//! integers that are multiplied with the scale of the super-block.
//!
//! Types with a minimum decode as `(d · scale) · code - (dmin · minimum)`, the others as
//! `(d · scale) · (code - offset)`; each operation is rounded. Within halves of 128 elements,
//! elements 32 apart share bytes. Source of the layouts: `ggml-common.h`.

use super::layout::{field, half_at, u32_of};

/// Scales and minima of 8 sub-blocks: 6 bits each, packed into 12 bytes.
pub(super) struct ScalesAndMinima {
    /// Scales, 0 to 63.
    pub(super) scales: [u8; 8],
    /// Minima, 0 to 63.
    pub(super) minima: [u8; 8],
}

impl ScalesAndMinima {
    /// Unpacks the fields. Bytes 0 to 3 contain the first four scales in their low 6 bits, bytes 4
    /// to 7 the first four minima. Bytes 8 to 11 contain the low nibbles of the other scales and
    /// minima; their high 2 bits are the top bits of bytes 0 to 7.
    #[inline(always)]
    pub(super) fn unpack(packed: &[u8; 12]) -> Self {
        let [first, second, third] = [0, 1, 2].map(|word| u32_of(packed, word));
        let six = 0x3f3f_3f3f;
        let high = |word: u32| word >> 2 & 0x3030_3030;
        let scales = [first & six, third & 0x0f0f_0f0f | high(first)];
        let minima = [second & six, third >> 4 & 0x0f0f_0f0f | high(second)];
        Self { scales: eight(scales), minima: eight(minima) }
    }

    /// The inverse of [`unpack`](Self::unpack).
    #[inline(always)]
    pub(super) fn pack(&self) -> [u8; 12] {
        let mut packed = [0; 12];
        for i in 0..4 {
            packed[i] = self.scales[i] | self.scales[i + 4] >> 4 << 6;
            packed[i + 4] = self.minima[i] | self.minima[i + 4] >> 4 << 6;
            packed[i + 8] = self.scales[i + 4] & 15 | self.minima[i + 4] << 4;
        }
        packed
    }
}

#[inline(always)]
fn eight(words: [u32; 2]) -> [u8; 8] {
    (u64::from(words[0]) | u64::from(words[1]) << 32).to_le_bytes()
}

/// Layout: a byte for each of 16 sub-blocks (low nibble scale, high nibble minimum), 2-bit codes,
/// halves `d` and `dmin`.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at::<80, 84>(block), half_at::<82, 84>(block));
    let scales = field::<0, 16, 84>(block);
    let codes = field::<16, 64, 84>(block);
    for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[at] & 15);
        let minimum = dmin * f32::from(scales[at] >> 4);
        let codes = sixteen(codes, 32 * (at / 8) + 16 * (at % 2));
        for i in 0..16 {
            out[i] = scale * f32::from(codes[i] >> (at / 2 % 4 * 2) & 3) - minimum;
        }
    }
}

/// Layout: third bits (if 0, the code is 4 less), 2-bit codes, 16 scales of 6 bits, half `d`.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at::<108, 110>(block);
    let high = field::<0, 32, 110>(block);
    let codes = field::<32, 64, 110>(block);
    let scales = unpack_six_bits(field::<96, 12, 110>(block));
    for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * (f32::from(scales[at]) - 32.0);
        let codes = sixteen(codes, 32 * (at / 8) + 16 * (at % 2));
        let high = sixteen(high, 16 * (at % 2));
        for i in 0..16 {
            let code = codes[i] >> (at / 2 % 4 * 2) & 3 | (high[i] >> (at / 2) & 1) << 2;
            out[i] = scale * (f32::from(code) - 4.0);
        }
    }
}

/// Unpacks 16 numbers of 6 bits: their low nibbles are in 8 bytes (number `i + 8` above number
/// `i`), their high 2 bits in 4 bytes.
#[inline(always)]
fn unpack_six_bits(packed: &[u8; 12]) -> [u8; 16] {
    std::array::from_fn(|i| packed[i % 8] >> (i / 8 * 4) & 15 | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4)
}

/// The inverse of [`unpack_six_bits`].
#[inline(always)]
pub(super) fn pack_six_bits(numbers: &[u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (i, number) in numbers.iter().enumerate() {
        packed[i % 8] |= (number & 15) << (i / 8 * 4);
        packed[8 + i % 4] |= number >> 4 << (i / 4 * 2);
    }
    packed
}

/// Layout: halves `d` and `dmin`, 8 scales and minima, nibbles.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at::<0, 144>(block), half_at::<2, 144>(block));
    let ScalesAndMinima { scales, minima } = ScalesAndMinima::unpack(field::<4, 12, 144>(block));
    let codes = field::<16, 128, 144>(block).as_chunks::<32>().0;
    for (at, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[at]);
        let minimum = dmin * f32::from(minima[at]);
        for (out, code) in out.iter_mut().zip(codes[at / 2]) {
            *out = scale * f32::from(code >> (at % 2 * 4) & 15) - minimum;
        }
    }
}

/// Like `Q4_K`, with fifth bits before the nibbles: bit `s` of byte `i` for element `i` of
/// sub-block `s`.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at::<0, 176>(block), half_at::<2, 176>(block));
    let ScalesAndMinima { scales, minima } = ScalesAndMinima::unpack(field::<4, 12, 176>(block));
    let high = field::<16, 32, 176>(block);
    let codes = field::<48, 128, 176>(block).as_chunks::<32>().0;
    for (at, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[at]);
        let minimum = dmin * f32::from(minima[at]);
        for i in 0..32 {
            let code = codes[at / 2][i] >> (at % 2 * 4) & 15 | (high[i] >> at & 1) << 4;
            out[i] = scale * f32::from(code) - minimum;
        }
    }
}

/// Layout: low nibbles, high 2 bits, 16 signed scales, half `d`.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at::<208, 210>(block);
    let low = field::<0, 128, 210>(block);
    let high = field::<128, 64, 210>(block);
    let scales = field::<192, 16, 210>(block);
    for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Each half has four quarters: in its 64 bytes of low nibbles, the first two quarters are
        // the low nibbles and the last two the high nibbles.
        let (half, quarter, side) = (at / 8, at / 2 % 4, at % 2);
        let scale = d * f32::from(scales[at].cast_signed());
        let low = sixteen(low, 64 * half + 32 * (quarter % 2) + 16 * side);
        let high = sixteen(high, 32 * half + 16 * side);
        for i in 0..16 {
            let code = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (2 * quarter) & 3) << 4;
            out[i] = scale * (f32::from(code) - 32.0);
        }
    }
}

#[inline(always)]
fn sixteen(bytes: &[u8], at: usize) -> &[u8; 16] {
    bytes[at..].first_chunk().expect("invariant: sub-blocks are within their block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_unpacked_as_they_were_packed() {
        let scales = [0, 63, 1, 62, 16, 47, 32, 21];
        let minima = [63, 0, 15, 48, 63, 31, 5, 60];
        let unpacked = ScalesAndMinima::unpack(&ScalesAndMinima { scales, minima }.pack());
        assert_eq!((unpacked.scales, unpacked.minima), (scales, minima));
        let numbers = std::array::from_fn(|i| (i * 37 % 64) as u8);
        assert_eq!(unpack_six_bits(&pack_six_bits(&numbers)), numbers);
    }
}
