//! IQ1, IQ2 and IQ3: runs of 4 or 8 elements are points of a grid, selected by an index.
//!
//! Scales are `d · (scale + ½) · ¼` or similar, with one rounding per operation. Sources:
//! `ggml-common.h` for the layouts, `ggml-quants.c` for the formulas.

mod tables;

use super::half;
use super::layout::{field, half_at, u16_of, u32_of};

pub use tables::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

/// Layout: half `d`; for each 32 elements, four one-byte indices, four times 7 sign bits, and a
/// 4-bit scale.
#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at::<0, 66>(block);
    let groups = field::<2, 64, 66>(block).as_chunks::<8>().0;
    for (group, out) in groups.iter().zip(out.as_chunks_mut::<32>().0) {
        let word = u32_of(group, 1);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            point(scale, &IQ2_XXS[usize::from(group[at])], seven_signs(word >> (7 * at)), out);
        }
    }
}

/// Layout: half `d`; for each 8 elements, 16 bits: 9 of the index, 7 of signs; for each 16, a 4-bit
/// scale.
#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half_at::<0, 74>(block);
    let codes = field::<2, 64, 74>(block);
    let scales = field::<66, 8, 74>(block);
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let code = u16_of(codes, at);
        let scale = d * (0.5 + nibble(scales, at / 2)) * 0.25;
        point(scale, &IQ2_XS[usize::from(code & 511)], seven_signs(u32::from(code >> 9)), out);
    }
}

/// Layout: half `d`; for each 8 elements, a byte of the index and a byte of signs; the indices'
/// high 2 bits; for each 16 elements, a 4-bit scale.
#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half_at::<0, 82>(block);
    let (low, signs) = (field::<2, 32, 82>(block), field::<34, 32, 82>(block));
    let (high, scales) = (field::<66, 8, 82>(block), field::<74, 8, 82>(block));
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let index = usize::from(low[at]) | usize::from(high[at / 4] >> (at % 4 * 2) & 3) << 8;
        let scale = d * (0.5 + nibble(scales, at / 2)) * 0.25;
        point(scale, &IQ2_S[index], signs[at], out);
    }
}

/// Layout: half `d`; for each 4 elements, a one-byte index; then for each 32, four times 7 sign
/// bits and a 4-bit scale.
#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half_at::<0, 98>(block);
    let indices = field::<2, 64, 98>(block);
    let words = field::<66, 32, 98>(block);
    for (at, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u32_of(words, at / 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = seven_signs(word >> (at % 4 * 7));
        for (half, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            point(scale, &IQ3_XXS[usize::from(indices[2 * at + half])], signs >> (4 * half), out);
        }
    }
}

/// Layout: half `d`; for each 4 elements, a byte of the index; the indices' ninth bits; signs; for
/// each 32 elements, a 4-bit scale.
#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at::<0, 110>(block);
    let (low, high) = (field::<2, 64, 110>(block), field::<66, 8, 110>(block));
    let (signs, scales) = (field::<74, 32, 110>(block), field::<106, 4, 110>(block));
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let index = usize::from(low[at]) | usize::from(high[at / 8] >> (at % 8) & 1) << 8;
        let scale = d * (1.0 + 2.0 * nibble(scales, at / 8));
        point(scale, &IQ3_S[index], signs[at / 2] >> (at % 2 * 4), out);
    }
}

/// Layout: half `d`; for each 8 elements, a byte of the index; for each 32, a word with the
/// indices' high 3 bits, a 3-bit scale and the sign of the shift.
#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half_at::<0, 50>(block);
    let (low, words) = (field::<2, 32, 50>(block), field::<34, 16, 50>(block));
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let word = u16_of(words, at / 4);
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let index = usize::from(low[at]) | usize::from(word >> (at % 4 * 3) & 7) << 8;
        shifted_point(scale, &IQ1_S[index], word & 0x8000 != 0, out);
    }
}

/// Layout: for each 8 elements, a byte of the index; for each 8, a nibble with the index's high 3
/// bits and the sign of the shift; four words, each with four 3-bit scales for 16 elements and, in
/// the top bits, a nibble of the half `d`.
#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (field::<0, 32, 56>(block), field::<32, 16, 56>(block));
    let scales = field::<48, 8, 56>(block);
    let d = half::to_f32((0..4).fold(0, |bits, word| bits | u16_of(scales, word) >> 12 << (4 * word)));
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let nibble = high[at / 2] >> (at % 2 * 4) & 15;
        let scale = d * f32::from(2 * (u16_of(scales, at / 8) >> (at / 2 % 4 * 3) & 7) + 1);
        let index = usize::from(low[at]) | usize::from(nibble & 7) << 8;
        shifted_point(scale, &IQ1_S[index], nibble & 8 != 0, out);
    }
}

/// Writes the values of a point; set sign bits mean negative values.
#[inline(always)]
fn point<const ELEMENTS: usize>(scale: f32, point: &[u8; ELEMENTS], signs: u8, out: &mut [f32; ELEMENTS]) {
    for i in 0..ELEMENTS {
        let sign = u32::from(signs >> i & 1) << 31;
        out[i] = f32::from_bits((scale * f32::from(point[i])).to_bits() ^ sign);
    }
}

/// Writes the values of a point whose coordinates 0, 1 and 2 stand for -1, 0 and 1, all shifted by
/// an eighth.
#[inline(always)]
fn shifted_point(scale: f32, point: &[u8; 8], down: bool, out: &mut [f32; 8]) {
    let shift = if down { -1.125 } else { -0.875 };
    for (out, coordinate) in out.iter_mut().zip(point) {
        *out = scale * (f32::from(*coordinate) + shift);
    }
}

/// Completes seven stored sign bits to eight, 1 for negative: the number of negative signs is even.
pub static SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut bits = 0;
    while bits < 128 {
        signs[bits] = bits as u8 | (bits.count_ones() as u8 & 1) << 7;
        bits += 1;
    }
    signs
};

#[inline(always)]
fn seven_signs(bits: u32) -> u8 {
    SIGNS[(bits & 127) as usize]
}

#[inline(always)]
fn nibble(bytes: &[u8], index: usize) -> f32 {
    f32::from(bytes[index / 2] >> (index % 2 * 4) & 15)
}
