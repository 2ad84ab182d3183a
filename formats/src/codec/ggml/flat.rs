//! Blocks with one half-precision scale and the same number of bits for each element.
//!
//! In the 4- and 5-bit types, elements `i` and `i + 16` share a byte; the fifth bits are a separate
//! word. Source of the layouts: `ggml-common.h`.

use super::layout::{field, half_at, u32_of};

/// Layout: half `d`; one bit per element, 1 for `d` and 0 for `-d`.
#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half_at::<0, 18>(block);
    let codes: &[u8; 16] = field::<2, 16, 18>(block);
    for (out, code) in out.as_chunks_mut::<8>().0.iter_mut().zip(codes) {
        for (bit, out) in out.iter_mut().enumerate() {
            *out = if code >> bit & 1 == 1 { d } else { -d };
        }
    }
}

/// Layout: half `d`; two bits per element: `(code - 1) · d`.
#[inline(always)]
pub(super) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = half_at::<0, 18>(block);
    let codes: &[u8; 16] = field::<2, 16, 18>(block);
    for (out, code) in out.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
        for (pair, out) in out.iter_mut().enumerate() {
            *out = (f32::from(code >> (2 * pair) & 3) - 1.0) * d;
        }
    }
}

/// Layout: half `d`; nibbles: `(code - 8) · d`.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at::<0, 18>(block);
    let codes: &[u8; 16] = field::<2, 16, 18>(block);
    for i in 0..16 {
        out[i] = (f32::from(codes[i] & 15) - 8.0) * d;
    }
    for i in 0..16 {
        out[i + 16] = (f32::from(codes[i] >> 4) - 8.0) * d;
    }
}

/// Layout: halves `d` and `m`; nibbles: `code · d + m`.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at::<0, 20>(block), half_at::<2, 20>(block));
    let codes: &[u8; 16] = field::<4, 16, 20>(block);
    for i in 0..16 {
        out[i] = f32::from(codes[i] & 15) * d + m;
    }
    for i in 0..16 {
        out[i + 16] = f32::from(codes[i] >> 4) * d + m;
    }
}

/// Layout: half `d`, fifth bits, nibbles: `(code - 16) · d`.
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at::<0, 22>(block);
    let codes = five_bits(field::<2, 4, 22>(block), field::<6, 16, 22>(block));
    for (out, code) in out.iter_mut().zip(codes) {
        *out = (code as f32 - 16.0) * d;
    }
}

/// Layout: halves `d` and `m`, fifth bits, nibbles: `code · d + m`.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at::<0, 24>(block), half_at::<2, 24>(block));
    let codes = five_bits(field::<4, 4, 24>(block), field::<8, 16, 24>(block));
    for (out, code) in out.iter_mut().zip(codes) {
        *out = code as f32 * d + m;
    }
}

#[inline(always)]
fn five_bits(high: &[u8; 4], low: &[u8; 16]) -> [i32; 32] {
    let high = u32_of(high, 0);
    let mut codes = [0; 32];
    for i in 0..16 {
        codes[i] = i32::from(low[i] & 15) | (high >> i << 4 & 16).cast_signed();
    }
    for i in 0..16 {
        codes[i + 16] = i32::from(low[i] >> 4) | (high >> (i + 16) << 4 & 16).cast_signed();
    }
    codes
}

/// Layout: half `d`; signed bytes: `code · d`.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    bytes(half_at::<0, 34>(block), field::<2, 32, 34>(block), out);
}

/// Layout: half `d`, half `d · sum of codes` (for dot products); signed bytes: `code · d`.
#[inline(always)]
pub(super) fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    bytes(half_at::<0, 36>(block), field::<4, 32, 36>(block), out);
}

/// Layout: float32 `d`, signed bytes, sums of 16 codes (for dot products): `code · d`.
#[inline(always)]
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    bytes(f32::from_le_bytes(*field::<0, 4, 292>(block)), field::<4, 256, 292>(block), out);
}

#[inline(always)]
fn bytes<const ELEMENTS: usize>(d: f32, codes: &[u8; ELEMENTS], out: &mut [f32; ELEMENTS]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32::from(code.cast_signed()) * d;
    }
}
