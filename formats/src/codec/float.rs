//! Plain elements: F32, F16, BF16, and other types with an obvious float32 value.
//!
//! Narrowing rounds to nearest, ties to even, and preserves NaN. Widening is exact.
#![expect(clippy::inline_always, reason = "what is inlined into the work is compiled for AVX2")]

use half::f16;

use super::simd::{self, Work};
use super::small_float::{E4M3, e8m0};
use crate::Dtype;
use crate::weight::Numbers;

/// Decodes little-endian elements.
///
/// # Panics
/// For element types without float32 values: packed or complex ones.
pub(super) fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => each(bytes, out, f32::from_le_bytes),
        Dtype::F16 => decode_f16(bytes, out),
        Dtype::Bf16 => simd::run(WidenBf16 { bytes, out }),
        Dtype::F64 => each(bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
        Dtype::F8_E4M3 => each(bytes, out, |[code]: [u8; 1]| E4M3[usize::from(code)]),
        Dtype::F8_E8M0 => each(bytes, out, |[code]: [u8; 1]| e8m0(code)),
        Dtype::F8_E5M2 => each(bytes, out, |[code]: [u8; 1]| f16_value([0, code])),
        Dtype::Bool | Dtype::U8 => each(bytes, out, |[code]: [u8; 1]| f32::from(code)),
        Dtype::I8 => each(bytes, out, |bytes| f32::from(i8::from_le_bytes(bytes))),
        Dtype::I16 => each(bytes, out, |bytes| f32::from(i16::from_le_bytes(bytes))),
        Dtype::U16 => each(bytes, out, |bytes| f32::from(u16::from_le_bytes(bytes))),
        Dtype::I32 => each(bytes, out, |bytes| i32::from_le_bytes(bytes) as f32),
        Dtype::U32 => each(bytes, out, |bytes| u32::from_le_bytes(bytes) as f32),
        Dtype::I64 => each(bytes, out, |bytes| i64::from_le_bytes(bytes) as f32),
        Dtype::U64 => each(bytes, out, |bytes| u64::from_le_bytes(bytes) as f32),
        other => panic!("elements of type {other} have no float32 values"),
    }
}

/// Whether [`encode`] can write the type.
pub(super) fn can_encode(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

/// Encodes the values as little-endian elements, rounded to nearest.
///
/// # Panics
/// If [`can_encode`] returns false.
pub(super) fn encode(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    simd::run(Encode { dtype, values, out });
}

struct Encode<'a> {
    dtype: Dtype,
    values: &'a [f32],
    out: &'a mut [u8],
}

impl Work for Encode<'_> {
    #[inline(always)]
    fn run(self) {
        encode_here(self.dtype, self.values, self.out);
    }
}

/// Like [`encode`], but inlined into callers that are compiled for AVX2.
#[inline(always)]
pub(super) fn encode_here(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                *out = value.to_le_bytes();
            }
        }
        Dtype::F16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                *out = f16::from_f32_const(*value).to_le_bytes();
            }
        }
        Dtype::Bf16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                *out = ((round_bf16(*value).to_bits() >> 16) as u16).to_le_bytes();
            }
        }
        other => panic!("numbers of type {other} cannot be written"),
    }
}

/// Returns one of some numbers.
#[inline]
pub(super) fn get(numbers: Numbers<'_>, index: usize) -> f32 {
    fn at<const SIZE: usize>(bytes: &[u8], index: usize) -> [u8; SIZE] {
        bytes.as_chunks::<SIZE>().0[index]
    }
    match numbers.dtype {
        Dtype::F32 => f32::from_le_bytes(at(numbers.bytes, index)),
        Dtype::F16 => f16_value(at(numbers.bytes, index)),
        Dtype::Bf16 => bf16_value(at(numbers.bytes, index)),
        Dtype::F8_E8M0 => e8m0(numbers.bytes[index]),
        other => unreachable!("a weight's scales are F32, F16, BF16 or E8M0, found {other}"),
    }
}

/// Rounds a value to the nearest number of the type; the result is float32.
///
/// # Panics
/// If [`can_encode`] returns false.
#[inline]
pub(super) fn round(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => f16::from_f32_const(value).to_f32_const(),
        Dtype::Bf16 => round_bf16(value),
        other => panic!("numbers of type {other} cannot be written"),
    }
}

/// Rounds a value to the nearest BF16; the result is float32. NaN becomes quiet. Unlike `half`'s
/// conversion, it has no branches.
#[inline(always)]
pub(super) fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let quiet = bits | 0x0040_0000;
    // Adds one half minus one unit, plus the last kept bit, which rounds ties to even. Only NaN
    // could overflow.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    f32::from_bits(if nan { quiet } else { nearest } & 0xffff_0000)
}

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if simd::widen_f16(bytes, out) {
        return;
    }
    each(bytes, out, f16_value);
}

struct WidenBf16<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Work for WidenBf16<'_> {
    #[inline(always)]
    fn run(self) {
        for (bytes, out) in self.bytes.as_chunks().0.iter().zip(self.out) {
            *out = bf16_value(*bytes);
        }
    }
}

fn each<const SIZE: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; SIZE]) -> f32) {
    for (bytes, out) in bytes.as_chunks::<SIZE>().0.iter().zip(out) {
        *out = value(*bytes);
    }
}

fn f16_value(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32_const()
}

#[inline(always)]
fn bf16_value(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_precision_number_leads_back() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = vec![0.0; 1 << 16];
            decode(dtype, &bytes, &mut values);
            let mut back = vec![0; bytes.len()];
            encode(dtype, &values, &mut back);
            for (code, value) in (0..=u16::MAX).zip(&values) {
                let at = usize::from(code) * 2;
                let numbers = Numbers { dtype, bytes: &bytes };
                let alone = get(numbers, usize::from(code));
                assert!(alone.to_bits() == value.to_bits() || alone.is_nan() && value.is_nan(), "{dtype} {code:#x}");
                assert!(value.is_nan() || back[at..at + 2] == code.to_le_bytes(), "{dtype} {code:#x}");
                assert_eq!(round(dtype, *value).is_nan(), value.is_nan(), "{dtype} {code:#x}");
            }
        }
    }

    #[test]
    fn rounding_is_that_of_half() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let expected = half::bf16::from_f32(value).to_f32();
                assert_eq!(round_bf16(value).to_bits(), expected.to_bits(), "{value}");
            }
        }
    }

    #[test]
    fn ties_go_to_even() {
        for (dtype, value, expected) in [
            (Dtype::Bf16, 1.0 + 1.0 / 256.0, 1.0),
            (Dtype::Bf16, 1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
            (Dtype::Bf16, f32::MAX, f32::INFINITY),
            (Dtype::F16, 2049.0, 2048.0),
            (Dtype::F16, 2051.0, 2052.0),
            (Dtype::F16, 65520.0, f32::INFINITY),
            (Dtype::F16, 2e-8, 0.0),
        ] {
            assert_eq!(round(dtype, value).to_bits(), f32::to_bits(expected), "{dtype} {value}");
        }
    }

    #[test]
    fn other_types() {
        for (dtype, bytes, expected) in [
            (Dtype::F64, 0.1f64.to_le_bytes().to_vec(), 0.1),
            (Dtype::I8, vec![0xff], -1.0),
            (Dtype::I64, (-3i64).to_le_bytes().to_vec(), -3.0),
            (Dtype::F8_E4M3, vec![0xb8], -1.0),
            (Dtype::F8_E5M2, vec![0x3c], 1.0),
            (Dtype::F8_E8M0, vec![126], 0.5),
        ] {
            let mut out = [0.0];
            decode(dtype, &bytes, &mut out);
            assert_eq!(out[0].to_bits(), f32::to_bits(expected), "{dtype}");
        }
    }
}
