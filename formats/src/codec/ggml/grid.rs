//! IQ1, IQ2 and IQ3: runs of 4 or 8 elements are points of a grid, named by an index.
//!
//! Scales are `d · (scale + ½) · ¼` and their like, with one rounding for each operation. Source of the layouts:
//! `ggml-common.h`, of the formulas `ggml-quants.c`.

mod tables;

use super::half;
use super::layout::{field, half_at, u16_of, u32_of};

pub use tables::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

/// Half `d`; for each 32 elements four indices of a byte, four times 7 bits of signs, and a scale of 4 bits.
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

/// Half `d`; 16 bits for each 8 elements: 9 of index, 7 of signs; a scale of 4 bits for each 16.
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

/// Half `d`; a byte of index and a byte of signs for each 8 elements, the indices' high 2 bits, and a scale of 4 bits
/// for each 16.
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

/// Half `d`; a byte of index for each 4 elements; then for each 32 four times 7 bits of signs and a scale of 4 bits.
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

/// Half `d`; a byte of index for each 4 elements, their ninth bits, signs, and a scale of 4 bits for each 32.
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

/// Half `d`; a byte of index for each 8 elements; for each 32 a word of the indices' high 3 bits, a scale of 3 bits and
/// the sign of the shift.
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

/// A byte of index for each 8 elements; a nibble with the index's high 3 bits and the sign of the shift; four words with
/// four scales of 3 bits each, for 16 elements, and on top a nibble of the half `d`.
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

/// The numbers of a point, negative where its bit is set.
#[inline(always)]
fn point<const ELEMENTS: usize>(scale: f32, point: &[u8; ELEMENTS], signs: u8, out: &mut [f32; ELEMENTS]) {
    for i in 0..ELEMENTS {
        let sign = u32::from(signs >> i & 1) << 31;
        out[i] = f32::from_bits((scale * f32::from(point[i])).to_bits() ^ sign);
    }
}

/// The numbers of a point with coordinates 0, 1 and 2 for -1, 0 and 1, all shifted by an eighth.
#[inline(always)]
fn shifted_point(scale: f32, point: &[u8; 8], down: bool, out: &mut [f32; 8]) {
    let shift = if down { -1.125 } else { -0.875 };
    for (out, coordinate) in out.iter_mut().zip(point) {
        *out = scale * (f32::from(*coordinate) + shift);
    }
}

/// Eight signs for the seven that are written, a bit each, 1 for negative: their number is even.
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
