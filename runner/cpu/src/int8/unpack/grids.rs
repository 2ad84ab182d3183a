//! GGML's blocks of 256 elements that are coordinates of grid points: `IQ1`, `IQ2` and `IQ3`.
//!
//! Coordinates are below 64. With their signs they fit into codes of 7 bits, so nothing is rounded.

use formats::codec::grid::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, SIGNS};

use super::super_blocks::super_block;
use super::{Codes, Factors, RowLayout, Units, UnpackedRows, VectorUnit, field};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// `d`; for each 32 elements four index bytes, four times 7 sign bits, and a scale of 4 bits.
pub(in crate::int8) struct Iq2Xxs;
/// `d`; for each 8 elements 9 index bits and 7 sign bits; a scale of 4 bits for each 16.
pub(in crate::int8) struct Iq2Xs;
/// `d`; for each 8 elements an index byte and a sign byte; the high 2 bits of the indices; a scale
/// of 4 bits for each 16.
pub(in crate::int8) struct Iq2S;
/// `d`; an index byte for each 4 elements; for each 32 four times 7 sign bits and a scale of 4
/// bits.
pub(in crate::int8) struct Iq3Xxs;
/// `d`; an index byte for each 4 elements; the ninth bits of the indices; signs; a scale of 4 bits
/// for each 32.
pub(in crate::int8) struct Iq3S;
/// `d`; an index byte for each 8 elements; for each 32 the high 3 bits of the indices, a scale of 3
/// bits, and the sign of the shift.
pub(in crate::int8) struct Iq1S;
/// An index byte for each 8 elements; nibbles with the high 3 bits of the index and the sign of the
/// shift; four words, each with four scales of 3 bits for 16 elements and a nibble of `d`.
pub(in crate::int8) struct Iq1M;

/// Evaluates an expression for each group of eight codes. Not a closure, since closures are not
/// compiled for the caller's instructions.
macro_rules! eights {
    (|$at:ident| $of:expr) => {{
        let mut all = [Default::default(); 4];
        for ($at, one) in all.iter_mut().enumerate() {
            *one = $of;
        }
        all
    }};
}

/// Size of a run of `IQ2_XXS` in bytes.
const RUN: usize = 8;

super_block!(Iq2Xxs, 66, halves false, wide false, parts 8, factors iq2_xxs, |unit, run| {
    let group: &[u8; RUN] = field(unit, 2 + RUN * usize::from(run));
    let signs = u32::from_le_bytes(*field(group, 4));
    let points = eights!(|at| u64::from_le_bytes(IQ2_XXS[usize::from(group[at])]));
    signed::<M>(points, four_times_seven(signs))
});
super_block!(Iq2Xs, 74, halves true, wide false, parts 16, factors iq2_xs, |unit, run| {
    let codes = u64::from_le_bytes(*field(unit, 2 + 8 * usize::from(run)));
    let points = eights!(|at| u64::from_le_bytes(IQ2_XS[(codes >> (16 * at) & 511) as usize]));
    signed::<M>(points, eights!(|at| SIGNS[(codes >> (16 * at + 9) & 127) as usize]))
});
super_block!(Iq2S, 82, halves true, wide false, parts 16, factors iq2_s, |unit, run| {
    let run = usize::from(run);
    let (low, high): (&[u8; 4], _) = (field(unit, 2 + 4 * run), usize::from(unit[66 + run]));
    let points = eights!(|at| u64::from_le_bytes(IQ2_S[usize::from(low[at]) | (high >> (2 * at) & 3) << 8]));
    signed::<M>(points, *field(unit, 34 + 4 * run))
});
super_block!(Iq3Xxs, 98, halves false, wide false, parts 8, factors iq3_xxs, |unit, run| {
    let run = usize::from(run);
    let indices: &[u8; 8] = field(unit, 2 + 8 * run);
    let four = eights!(|at| pair(
        IQ3_XXS[usize::from(indices[2 * at])],
        IQ3_XXS[usize::from(indices[2 * at + 1])]
    ));
    signed::<M>(four, four_times_seven(u32::from_le_bytes(*field(unit, 66 + 4 * run))))
});
super_block!(Iq3S, 110, halves false, wide false, parts 8, factors iq3_s, |unit, run| {
    let run = usize::from(run);
    let (low, high): (&[u8; 8], _) = (field(unit, 2 + 8 * run), usize::from(unit[66 + run]));
    let points = eights!(|at| pair(
        IQ3_S[usize::from(low[2 * at]) | (high >> (2 * at) & 1) << 8],
        IQ3_S[usize::from(low[2 * at + 1]) | (high >> (2 * at + 1) & 1) << 8]
    ));
    signed::<M>(points, *field(unit, 74 + 4 * run))
});
super_block!(Iq1S, 50, halves false, wide false, parts 8, factors iq1_s, |unit, run| {
    let run = usize::from(run);
    let low: &[u8; 4] = field(unit, 2 + 4 * run);
    let high = usize::from(u16::from_le_bytes(*field(unit, 34 + 2 * run)));
    M::Codes::eights(eights!(|at| u64::from_le_bytes(IQ1_S[usize::from(low[at]) | (high >> (3 * at) & 7) << 8])))
});
super_block!(Iq1M, 56, halves true, wide false, parts 16, factors iq1_m, |unit, run| {
    let run = usize::from(run);
    let low: &[u8; 4] = field(unit, 4 * run);
    let high = usize::from(u16::from_le_bytes(*field(unit, 32 + 2 * run)));
    let points = eights!(|at| u64::from_le_bytes(IQ1_S[usize::from(low[at]) | (high >> (4 * at) & 7) << 8]));
    let up = eights!(|at| if high >> (4 * at + 3) & 1 == 0 { 0x0202_0202_0202_0202 } else { 0 });
    M::Codes::eights(up).with(M::Codes::eights(points), 3)
});

/// Applies signs to coordinates and adds 64.
#[inline(always)]
fn signed<M: VectorUnit>(points: [u64; 4], signs: [u8; 4]) -> M::Codes {
    M::Codes::eights(points).with(M::Codes::from([64; BLOCK]), 0).mirrored(signs)
}

/// Joins two points of four coordinates.
#[inline(always)]
fn pair(first: [u8; 4], second: [u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(second)) << 32
}

/// Returns the signs in the low bits of a word.
#[inline(always)]
fn four_times_seven(word: u32) -> [u8; 4] {
    eights!(|at| SIGNS[(word >> (7 * at) & 127) as usize])
}

/// Returns a nibble as a number.
#[inline(always)]
fn nibble(bytes: &[u8], at: usize) -> f32 {
    f32::from(bytes[at / 2] >> (at % 2 * 4) & 15)
}

/// Returns scales, and the offsets for codes that are coordinates plus 64.
#[inline(always)]
fn centred<const PARTS: usize>(scales: [f32; PARTS]) -> ([f32; PARTS], [f32; PARTS]) {
    (scales, scales.map(|scale| -64.0 * scale))
}

#[inline(always)]
fn iq2_xxs<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let d = M::half(*field(unit, 0));
    centred([0, 1, 2, 3, 4, 5, 6, 7].map(|run| d * (0.5 + f32::from(unit[2 + RUN * run + 7] >> 4)) * 0.25))
}

#[inline(always)]
fn iq2_xs<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    scales_of_sixteen(M::half(*field(unit, 0)), *field(unit, 66))
}

#[inline(always)]
fn iq2_s<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    scales_of_sixteen(M::half(*field(unit, 0)), *field(unit, 74))
}

/// Computes scales of 16 elements each.
#[inline(always)]
fn scales_of_sixteen(d: f32, nibbles: [u8; 8]) -> ([f32; 16], [f32; 16]) {
    let mut scales = [0.0; 16];
    for (at, scale) in scales.iter_mut().enumerate() {
        *scale = d * (0.5 + nibble(&nibbles, at)) * 0.25;
    }
    centred(scales)
}

#[inline(always)]
fn iq3_xxs<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let d = M::half(*field(unit, 0));
    centred([0, 1, 2, 3, 4, 5, 6, 7].map(|run| d * (0.5 + f32::from(unit[66 + 4 * run + 3] >> 4)) * 0.5))
}

#[inline(always)]
fn iq3_s<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, nibbles): (_, &[u8; 4]) = (M::half(*field(unit, 0)), field(unit, 106));
    centred([0, 1, 2, 3, 4, 5, 6, 7].map(|run| d * (1.0 + 2.0 * nibble(nibbles, run))))
}

#[inline(always)]
fn iq1_s<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let d = M::half(*field(unit, 0));
    let words = [0, 1, 2, 3, 4, 5, 6, 7].map(|run| u16::from_le_bytes(*field(unit, 34 + 2 * run)));
    let scales = words.map(|word| d * f32::from(2 * (word >> 12 & 7) + 1));
    let mut offsets = scales;
    for (offset, word) in offsets.iter_mut().zip(words) {
        *offset *= if word & 0x8000 == 0 { -0.875 } else { -1.125 };
    }
    (scales, offsets)
}

#[inline(always)]
fn iq1_m<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    let words = [0, 1, 2, 3].map(|word| u16::from_le_bytes(*field(unit, 48 + 2 * word)));
    let bits = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
    // Codes are eighths of coordinates.
    let d = M::half(bits.to_le_bytes()) * 0.125;
    let mut scales = [0.0; 16];
    for (at, scale) in scales.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (words[at / 4] >> (at % 4 * 3) & 7) + 1);
    }
    (scales, scales.map(|scale| -9.0 * scale))
}
