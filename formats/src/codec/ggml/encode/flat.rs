//! Encoders of the types with one scale for 32 elements. Source of the formulas:
//! `quantize_row_*_ref` in `ggml-quants.c`.

use super::super::half;
use super::extremes::{largest_magnitude, least_and_greatest, most_extreme};
use super::lanes::Lanes;
use super::rounding::{ALMOST_HALF, reciprocal};

/// `d` is the number of largest magnitude divided by -8, so that this number gets code 0.
#[inline(always)]
pub(super) fn q4_0<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 18]) {
    let d = most_extreme::<L, 32>(numbers) / -8.0;
    let inverse = reciprocal(d);
    let codes = at_most(15, codes::<L>(numbers, 0.0, inverse, 8.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..].copy_from_slice(&nibbles(&codes));
}

/// `m` is the smallest number, `d` is 1/15 of the range.
#[inline(always)]
pub(super) fn q4_1<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 20]) {
    let (least, greatest) = least_and_greatest::<L, 32>(numbers);
    let d = (greatest - least) / 15.0;
    let inverse = reciprocal(d);
    let codes = at_most(15, codes::<L>(numbers, least, inverse, 0.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&half::from_f32(least).to_le_bytes());
    block[4..].copy_from_slice(&nibbles(&codes));
}

/// `d` is the number of largest magnitude divided by -16.
#[inline(always)]
pub(super) fn q5_0<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 22]) {
    let d = most_extreme::<L, 32>(numbers) / -16.0;
    let inverse = reciprocal(d);
    let codes = at_most(31, codes::<L>(numbers, 0.0, inverse, 16.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..6].copy_from_slice(&fifth_bits(&codes));
    block[6..].copy_from_slice(&nibbles(&codes));
}

/// `m` is the smallest number, `d` is 1/31 of the range.
#[inline(always)]
pub(super) fn q5_1<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 24]) {
    let (least, greatest) = least_and_greatest::<L, 32>(numbers);
    let d = (greatest - least) / 31.0;
    let inverse = reciprocal(d);
    let codes = codes::<L>(numbers, least, inverse, 0.5);
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&half::from_f32(least).to_le_bytes());
    block[4..8].copy_from_slice(&fifth_bits(&codes));
    block[8..].copy_from_slice(&nibbles(&codes));
}

/// `d` is the largest magnitude divided by 127.
#[inline(always)]
pub(super) fn q8_0<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 34]) {
    let d = largest_magnitude::<L, 32>(numbers) / 127.0;
    let inverse = reciprocal(d);
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    let (inverse, half) = (L::splat(inverse), L::splat(ALMOST_HALF));
    let mut lanes = [half; 4];
    for (lanes, eight) in lanes.iter_mut().zip(numbers.as_chunks().0) {
        let number = L::new(*eight).mul(inverse);
        *lanes = number.add(half.copysign(number));
    }
    block[2..].copy_from_slice(&L::bytes(lanes));
}

/// Computes `(number - least) · inverse + offset`, truncated to a byte.
#[inline(always)]
fn codes<L: Lanes>(numbers: &[f32; 32], least: f32, inverse: f32, offset: f32) -> [u8; 32] {
    let (least, inverse, offset) = (L::splat(least), L::splat(inverse), L::splat(offset));
    let mut lanes = [offset; 4];
    for (lanes, eight) in lanes.iter_mut().zip(numbers.as_chunks().0) {
        *lanes = L::new(*eight).sub(least).mul(inverse).add(offset);
    }
    L::bytes(lanes)
}

/// Limits the codes, as signed bytes, to `bound`.
#[inline(always)]
fn at_most(bound: i8, mut codes: [u8; 32]) -> [u8; 32] {
    for code in &mut codes {
        *code = code.cast_signed().min(bound).cast_unsigned();
    }
    codes
}

/// Packs codes into nibbles: element `i` in the low half of byte `i`, element `i + 16` in the high
/// half.
#[inline(always)]
fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for i in 0..16 {
        bytes[i] = codes[i] & 15 | codes[i + 16] << 4;
    }
    bytes
}

/// Returns bit 4 of each code, as a word.
#[inline(always)]
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    /// Multiplier that moves the low bit of byte `i` to bit `56 + i`, without carries.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut bytes = [0; 4];
    for (byte, eight) in bytes.iter_mut().zip(codes.as_chunks().0) {
        let bits = u64::from_le_bytes(*eight) >> 4 & 0x0101_0101_0101_0101;
        *byte = (bits.wrapping_mul(GATHER) >> 56) as u8;
    }
    bytes
}
