//! Four-bit types whose codes are indices into a small table: E2M1 floats, and the 16 steps of IQ4.
//!
//! Low nibbles are the first half of a group, high nibbles the second. Source of the layouts and of
//! the IQ4 table: `ggml-common.h`.

use super::layout::{field, half_at, u16_of};

/// The table of `IQ4_NL` and `IQ4_XS`.
pub const STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const STEPS_F32: [f32; 16] = {
    let mut numbers = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        numbers[i] = STEPS[i] as f32;
        i += 1;
    }
    numbers
};

/// E2M1 values, doubled so that they are integers (OCP microscaling formats 1.0). Scales are halved
/// in return.
pub const E2M1: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Layout: half `d`; codes.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    nibbles(half_at::<0, 18>(block), field::<2, 16, 18>(block), &STEPS_F32, out);
}

/// Layout: half `d`; 8 scales of 6 bits (their high 2 bits in a 16-bit word, then their low
/// nibbles); codes.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at::<0, 136>(block);
    let high = u16_of(field::<2, 2, 136>(block), 0);
    let low = field::<4, 4, 136>(block);
    let codes = field::<8, 128, 136>(block).as_chunks::<16>().0;
    for (at, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = u16::from(low[at / 2] >> (at % 2 * 4) & 15) | (high >> (2 * at) & 3) << 4;
        nibbles(d * (f32::from(scale) - 32.0), &codes[at], &STEPS_F32, out);
    }
}

/// Layout: an exponent for 32 E2M1 elements; codes.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    nibbles(half_of_e8m0(block[0]), field::<1, 16, 17>(block), &E2M1, out);
}

/// Layout: four unsigned E4M3 scales for 16 E2M1 elements each; codes.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let codes = field::<4, 32, 36>(block).as_chunks::<8>().0;
    for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        nibbles(half_of_ue4m3(block[at]), &codes[at], &E2M1, out);
    }
}

#[inline(always)]
fn nibbles<const BYTES: usize, const ELEMENTS: usize>(
    scale: f32,
    codes: &[u8; BYTES],
    table: &[f32; 16],
    out: &mut [f32; ELEMENTS],
) {
    const { assert!(2 * BYTES == ELEMENTS) };
    for i in 0..BYTES {
        out[i] = table[usize::from(codes[i] & 15)] * scale;
        out[i + BYTES] = table[usize::from(codes[i] >> 4)] * scale;
    }
}

/// Returns half of 2^(x - 127). In ggml, 255 is not NaN.
#[inline(always)]
pub fn half_of_e8m0(x: u8) -> f32 {
    // The two smallest values are subnormal.
    f32::from_bits(if x < 2 { 0x0020_0000 << x } else { u32::from(x - 1) << 23 })
}

/// Returns half of an E4M3 number without its sign. 0x7f, which is NaN in E4M3, gives 0.
#[inline(always)]
pub fn half_of_ue4m3(x: u8) -> f32 {
    /// 2^-10: half of the smallest subnormal.
    const SMALLEST: f32 = 1.0 / 1024.0;
    let magnitude = u32::from(x & 0x7f);
    let subnormal = (magnitude as f32 * SMALLEST).to_bits();
    // Without branches, so that the compiler vectorizes it.
    let finite = if magnitude < 8 { subnormal } else { (magnitude << 20) + ((127 - 7 - 1) << 23) };
    f32::from_bits(if x == 0x7f { 0 } else { finite })
}
