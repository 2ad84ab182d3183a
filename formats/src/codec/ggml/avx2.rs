//! The codecs compiled for AVX2: all code below these entry points is inlined into them.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions compiled for AVX2 are called where AVX2 was detected")
)]

use super::encode::{Portable, encode_with};
use crate::GgmlType;

/// [`super::decode_with`], compiled for AVX2 if the machine has it.
pub(super) fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the function requires only AVX2, which was just detected.
        return unsafe { decode_avx2(kind, bytes, out) };
    }
    super::decode_with(kind, bytes, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn decode_avx2(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    super::decode_with(kind, bytes, out);
}

/// [`encode_with`], compiled for AVX2 if the machine has it.
pub(super) fn encode(kind: GgmlType, row: &[f32], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the function requires only AVX2, which was just detected.
        return unsafe { encode_avx2(kind, row, out) };
    }
    encode_with::<Portable>(kind, row, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(kind: GgmlType, row: &[f32], out: &mut [u8]) {
    encode_with::<super::encode::Avx2>(kind, row, out);
}
