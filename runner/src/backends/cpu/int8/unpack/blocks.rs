//! GGML's small blocks: codes with one scale, low nibbles the first half of a group, high ones the second.

use super::{Codes, Machine, field};
use crate::backends::cpu::int8::panel::{LANES, Panel};
use crate::backends::cpu::int8::{BLOCK, Part};

/// The steps of `IQ4_NL` and `IQ4_XS`, and 128.
pub(super) const STEPS: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Doubled E2M1 numbers, and 12.
pub(super) const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Unpacks each block of each row, of so many bytes. A block begins with half `d`; `m` is half too and lies at the offset, or
/// is `zero · d` where that is 0. It is a macro because closures are not compiled for the instructions of who calls them.
macro_rules! each_block {
    ($machine:ident, $part:ident, $panel:ident, $bytes:literal, offset $offset:literal, zero $zero:literal, |$block:ident| $codes:expr) => {{
        let (first, count) = ($part.first / BLOCK, $part.columns / BLOCK);
        for (lane, source) in $part.sources.iter().enumerate() {
            let blocks = &source.codes.as_chunks::<$bytes>().0[first..first + count];
            let places = $panel.rows[lane].as_chunks_mut::<BLOCK>().0;
            for (($block, place), bits) in blocks.iter().zip(places).zip(&mut $panel.bits) {
                *place = $codes.into();
                bits[0][lane] = *field($block, 0);
                if $offset > 0 {
                    bits[1][lane] = *field($block, $offset);
                }
            }
        }
        blocks::numbers::<$machine>($part, $panel, ($offset == 0).then_some($zero));
    }};
}

pub(super) use each_block;

/// Makes scales and offsets of their bits; where `zero` is given, offsets are that times the scales.
#[inline(always)]
pub(super) fn numbers<M: Machine>(part: &Part<'_>, panel: &mut Panel, zero: Option<f32>) {
    for (at, bits) in panel.bits[..part.columns / BLOCK].iter_mut().enumerate() {
        for lane in part.sources.len()..LANES {
            (bits[0][lane], bits[1][lane]) = ([0; 2], [0; 2]);
        }
        panel.scales[at] = M::halves(&bits[0]);
        match zero {
            None => panel.offsets[at] = M::halves(&bits[1]),
            Some(zero) => {
                for (offset, scale) in panel.offsets[at].iter_mut().zip(panel.scales[at]) {
                    *offset = zero * scale;
                }
            }
        }
    }
}

/// Fifth bits, then nibbles.
#[inline(always)]
pub(super) fn five_bits<M: Machine>(packed: &[u8; 20]) -> M::Codes {
    // A byte's bits, each in a byte of its own: copies of the byte, of each of which another bit is left.
    const EACH: u64 = 0x8040_2010_0804_0201;
    let mut fifth = [0; BLOCK];
    for (fifth, bits) in fifth.as_chunks_mut::<8>().0.iter_mut().zip(field::<4>(packed, 0)) {
        let each = (u64::from(*bits) * 0x0101_0101_0101_0101) & EACH;
        // Adding 127 to a bit, or 0, sets the highest bit of its byte, where there is one.
        let set = ((each & 0x7f7f_7f7f_7f7f_7f7f) + 0x7f7f_7f7f_7f7f_7f7f) | each;
        *fifth = (set >> 3 & 0x1010_1010_1010_1010).to_le_bytes();
    }
    M::Codes::nibbles(field(packed, 4)).with::<0>(fifth.into())
}

/// An exponent, then nibbles that are E2M1 numbers.
#[inline(always)]
pub(super) fn mxfp4<M: Machine>(part: &Part<'_>, panel: &mut Panel) {
    let (first, count) = (part.first / BLOCK, part.columns / BLOCK);
    for (lane, source) in part.sources.iter().enumerate() {
        let blocks = &source.codes.as_chunks::<17>().0[first..first + count];
        let places = panel.rows[lane].as_chunks_mut::<BLOCK>().0;
        for ((block, place), scales) in blocks.iter().zip(places).zip(&mut panel.scales) {
            *place = M::Codes::nibbles(field(block, 1)).lookup(&E2M1).into();
            scales[lane] = half_of_e8m0(block[0]);
        }
    }
    for (scales, offsets) in panel.scales[..count].iter().zip(&mut panel.offsets) {
        for (offset, scale) in offsets.iter_mut().zip(scales) {
            *offset = -12.0 * scale;
        }
    }
}

/// Half of 2^(x - 127). 255 is no NaN to ggml.
#[inline(always)]
fn half_of_e8m0(x: u8) -> f32 {
    // The two smallest are subnormal.
    f32::from_bits(if x < 2 { 0x0020_0000 << x } else { u32::from(x - 1) << 23 })
}

/// Blocks of 64: four unsigned E4M3 scales, each for 16 E2M1 numbers.
#[inline(always)]
pub(super) fn nvfp4<M: Machine>(part: &Part<'_>, panel: &mut Panel) {
    const ELEMENTS: usize = 64;
    let (first, count) = (part.first / ELEMENTS, part.columns / ELEMENTS);
    for (lane, source) in part.sources.iter().enumerate() {
        let blocks = &source.codes.as_chunks::<36>().0[first..first + count];
        for (at, (block, places)) in blocks.iter().zip(panel.rows[lane].as_chunks_mut::<ELEMENTS>().0).enumerate() {
            for (half, place) in places.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                let codes: [u8; BLOCK] = M::Codes::nibbles(field(block, 4 + 16 * half)).lookup(&E2M1).into();
                // Nibbles of eight bytes are 16 elements.
                let (a, b) = (*field::<8>(&codes, 0), *field::<8>(&codes, 8));
                let (c, d) = (*field::<8>(&codes, 16), *field::<8>(&codes, 24));
                for (place, run) in place.as_chunks_mut::<8>().0.iter_mut().zip([a, c, b, d]) {
                    *place = run;
                }
            }
            for (group, code) in block[..4].iter().enumerate() {
                let d = half_of_ue4m3(*code);
                [panel.scales[4 * at + group][lane], panel.offsets[4 * at + group][lane]] = [d, -12.0 * d];
            }
        }
    }
}

/// Half of an E4M3 number without its sign; 0x7f, which is a NaN elsewhere, is 0.
#[inline(always)]
fn half_of_ue4m3(x: u8) -> f32 {
    /// 2^-10: half of the smallest subnormal.
    const SMALLEST: f32 = 1.0 / 1024.0;
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), u32::from(x & 7));
    match exponent {
        _ if x == 0x7f => 0.0,
        0 => mantissa as f32 * SMALLEST,
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}
