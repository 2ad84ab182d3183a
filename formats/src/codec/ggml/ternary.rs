//! Ternary types with the values -d, 0 and d. Source of the layouts: `ggml-common.h`; made for
//! `BitNet` b1.58 and `TriLMs`.

use super::layout::{field, half_at};

/// Layout: base 3 numbers, scaled so that a multiplication yields the digits from the top:
/// `⌈n · 256 / 243⌉`. 32 bytes of five digits (element `i` of five runs of 32), 16 bytes of five, 4
/// bytes of four; half `d`.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half_at::<52, 54>(block);
    digits(d, field::<0, 32, 54>(block), &mut out[..160]);
    digits(d, field::<32, 16, 54>(block), &mut out[160..240]);
    digits(d, field::<48, 4, 54>(block), &mut out[240..]);
}

#[inline(always)]
fn digits<const BYTES: usize>(d: f32, bytes: &[u8; BYTES], out: &mut [f32]) {
    let mut power = 1u8;
    for out in out.as_chunks_mut::<BYTES>().0 {
        for (out, byte) in out.iter_mut().zip(bytes) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *out = (f32::from(digit) - 1.0) * d;
        }
        power *= 3;
    }
}

/// Layout: 2-bit codes (elements 32 apart share a byte), half `d`: `(code - 1) · d`.
#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at::<64, 66>(block);
    let codes = field::<0, 64, 66>(block).as_chunks::<32>().0;
    for (at, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (out, code) in out.iter_mut().zip(codes[at / 4]) {
            *out = (f32::from(code >> (at % 4 * 2) & 3) - 1.0) * d;
        }
    }
}
