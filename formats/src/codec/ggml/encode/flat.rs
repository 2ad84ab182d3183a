//! Types with one scale for 32 elements. Source of the formulas: `quantize_row_*_ref` in `ggml-quants.c`.

use super::super::half;
use super::rounding::{away_from_zero, largest_magnitude, least_and_greatest, most_extreme, reciprocal, truncate};

/// `d` is the number of largest magnitude over -8: it becomes code 0.
#[inline(always)]
pub(super) fn q4_0(numbers: &[f32; 32], block: &mut [u8; 18]) {
    let d = most_extreme(numbers) / -8.0;
    let inverse = reciprocal(d);
    let codes = codes_of(numbers, |number| at_most(15, number * inverse + 8.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..].copy_from_slice(&nibbles(&codes));
}

/// `m` is the least number, `d` a fifteenth of the range.
#[inline(always)]
pub(super) fn q4_1(numbers: &[f32; 32], block: &mut [u8; 20]) {
    let (least, greatest) = least_and_greatest(numbers);
    let d = (greatest - least) / 15.0;
    let inverse = reciprocal(d);
    let codes = codes_of(numbers, |number| at_most(15, (number - least) * inverse + 0.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&half::from_f32(least).to_le_bytes());
    block[4..].copy_from_slice(&nibbles(&codes));
}

/// `d` is the number of largest magnitude over -16.
#[inline(always)]
pub(super) fn q5_0(numbers: &[f32; 32], block: &mut [u8; 22]) {
    let d = most_extreme(numbers) / -16.0;
    let inverse = reciprocal(d);
    let codes = codes_of(numbers, |number| at_most(31, number * inverse + 16.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..6].copy_from_slice(&fifth_bits(&codes));
    block[6..].copy_from_slice(&nibbles(&codes));
}

/// `m` is the least number, `d` a 31st of the range.
#[inline(always)]
pub(super) fn q5_1(numbers: &[f32; 32], block: &mut [u8; 24]) {
    let (least, greatest) = least_and_greatest(numbers);
    let d = (greatest - least) / 31.0;
    let inverse = reciprocal(d);
    let codes = codes_of(numbers, |number| truncate((number - least) * inverse + 0.5));
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&half::from_f32(least).to_le_bytes());
    block[4..8].copy_from_slice(&fifth_bits(&codes));
    block[8..].copy_from_slice(&nibbles(&codes));
}

/// `d` is the largest magnitude over 127.
#[inline(always)]
pub(super) fn q8_0(numbers: &[f32; 32], block: &mut [u8; 34]) {
    let d = largest_magnitude(numbers) / 127.0;
    let inverse = reciprocal(d);
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    for (code, number) in block[2..].iter_mut().zip(numbers) {
        *code = away_from_zero(number * inverse) as u8;
    }
}

#[inline(always)]
fn codes_of(numbers: &[f32; 32], code: impl Fn(f32) -> i32) -> [i32; 32] {
    let mut codes = [0; 32];
    for (out, number) in codes.iter_mut().zip(numbers) {
        *out = code(*number);
    }
    codes
}

/// A code, cut down to a signed byte before it is held against the bound.
#[inline(always)]
fn at_most(bound: i32, number: f32) -> i32 {
    let code = i32::from(truncate(number) as i8);
    if code < bound { code } else { bound }
}

/// Element `i` in the low half of byte `i`, element `i + 16` in the high half.
#[inline(always)]
fn nibbles(codes: &[i32; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for i in 0..16 {
        bytes[i] = (codes[i] & 15 | (codes[i + 16] & 15) << 4) as u8;
    }
    bytes
}

/// Bit 4 of each code, as a word.
#[inline(always)]
fn fifth_bits(codes: &[i32; 32]) -> [u8; 4] {
    let mut word = 0;
    for (i, code) in codes.iter().enumerate() {
        word |= (code.cast_unsigned() >> 4 & 1) << i;
    }
    word.to_le_bytes()
}
