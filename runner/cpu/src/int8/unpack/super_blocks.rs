//! GGML's blocks of 256 elements: the K types, `IQ4_XS`, and the ternary types.

use super::blocks::{STEPS, halves};
use super::{Codes, Factors, Nibbles, RowLayout, Units, UnpackedRows, VectorUnit, field};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// `scales[16]` (scale in the low nibble, offset in the high one), `qs[64]` of two bits, `d`,
/// `dmin`.
pub(in crate::int8) struct Q2K;
/// `hmask[32]`, `qs[64]` of two bits, `scales[12]` of six bits, `d`.
pub(in crate::int8) struct Q3K;
/// `d`, `dmin`, `scales[12]` of six bits, nibbles.
pub(in crate::int8) struct Q4K;
/// `d`, `dmin`, `scales[12]` of six bits, fifth bits, nibbles.
pub(in crate::int8) struct Q5K;
/// `ql[128]`, `qh[64]`, `scales[16]` signed, `d`.
pub(in crate::int8) struct Q6K;
/// `d` as float16; 8 scales of 6 bits (their high 2 bits in a 16-bit word, then their low nibbles);
/// nibbles that are indices of steps.
pub(in crate::int8) struct Iq4Xs;
/// Packed base-3 numbers, scaled so that a multiplication moves each digit to the top; `d` as
/// float16.
pub(in crate::int8) struct Tq1;
/// Codes of two bits; `d` as float16.
pub(in crate::int8) struct Tq2;

/// Defines a layout of blocks. `$of_row` returns `d` and `m` of the `$parts` parts of one row's
/// block; `$of_rows` those of eight rows.
macro_rules! super_block {
    ($layout:ident, $bytes:literal, halves $halves:literal, wide $wide:literal, parts $parts:literal,
        factors $of_row:ident, |$unit:ident, $run:ident| $codes:expr $(, nibbles $nibbles:expr)?) => {
        super_block!(@ $layout, $bytes, $halves, $wide, |$unit, $run| $codes, [$($nibbles)?], |units, factors| {
            let mut scales = [[[0.0; 8]; HALF]; $parts / 8];
            let mut offsets = [[[0.0; 8]; HALF]; $parts / 8];
            for row in 0..HALF {
                let (own_scales, own_offsets): ([f32; $parts], [f32; $parts]) = $of_row::<M>(units[row]);
                for at in 0..$parts / 8 {
                    scales[at][row] = *own_scales[8 * at..].first_chunk().expect("invariant: eight of them");
                    offsets[at][row] = *own_offsets[8 * at..].first_chunk().expect("invariant: eight of them");
                }
            }
            for at in 0..$parts / 8 {
                factors.scales[8 * at..8 * at + 8].copy_from_slice(&M::transpose(&scales[at]));
                factors.offsets[8 * at..8 * at + 8].copy_from_slice(&M::transpose(&offsets[at]));
            }
        });
    };
    ($layout:ident, $bytes:literal, halves $halves:literal, wide $wide:literal,
        all factors $of_rows:ident, |$unit:ident, $run:ident| $codes:expr) => {
        super_block!(@ $layout, $bytes, $halves, $wide, |$unit, $run| $codes, [], |units, factors| {
            $of_rows::<M>(units, factors);
        });
    };
    (@ $layout:ident, $bytes:literal, $halves:literal, $wide:literal, |$unit:ident, $run:ident| $codes:expr,
        [$($nibbles:expr)?], |$units:ident, $factors:ident| $body:block) => {
        impl RowLayout for $layout {
            const BYTES: usize = $bytes;
            const RUNS: usize = 8;
            const HALVES: bool = $halves;
            const WIDE: bool = $wide;
            $(const NIBBLES: Option<Nibbles> = Some($nibbles);)?

            #[inline(always)]
            fn codes<M: VectorUnit>($unit: &[u8], $run: u8) -> M::Codes {
                $codes
            }

            #[inline(always)]
            fn factors<M: VectorUnit>(_rows: &UnpackedRows<'_>, _unit: usize, $units: &Units<'_>, $factors: &mut Factors) $body
        }
    };
}

pub(super) use super_block;

super_block!(Q2K, 84, halves true, wide false, parts 16, factors q2_k, |unit, run| two_bits::<M>(&unit[16..80], run));
super_block!(Q3K, 110, halves true, wide false, parts 16, factors q3_k, |unit, run| {
    two_bits::<M>(&unit[32..96], run).with(bit::<M>(field(unit, 0), run), 2)
});
super_block!(Q4K, 144, halves false, wide false, all factors six_bits, |unit, run| {
    four_bits::<M>(&unit[16..144], run)
});
super_block!(Q5K, 176, halves false, wide false, all factors six_bits, |unit, run| {
    four_bits::<M>(&unit[48..176], run).with(bit::<M>(field(unit, 16), run), 4)
});
super_block!(Q6K, 210, halves true, wide false, parts 16, factors q6_k, |unit, run| {
    let (half, run) = (usize::from(run / 4), run % 4);
    let low = M::Codes::from(*field(unit, 64 * half + 32 * usize::from(run % 2)));
    let high = M::Codes::from(*field(unit, 128 + 32 * half));
    low.bits(run / 2 * 4, 15).with(high.bits(2 * run, 3), 4)
});
super_block!(
    Iq4Xs,
    136,
    halves false,
    wide true,
    parts 8,
    factors iq4_xs,
    |unit, run| halves(8, Some(&STEPS)).codes::<M>(unit, run),
    nibbles halves(8, Some(&STEPS))
);
super_block!(Tq1, 54, halves false, wide false, parts 8, factors tq1_0, |unit, run| digits(unit, run).into());
super_block!(Tq2, 66, halves false, wide false, parts 8, factors tq2_0, |unit, run| two_bits::<M>(&unit[..64], run));

/// Element `l` of run `j` in half `n` is bits `2j` and `2j + 1` of byte `32n + l`.
#[inline(always)]
fn two_bits<M: VectorUnit>(packed: &[u8], run: u8) -> M::Codes {
    M::Codes::from(*field(packed, usize::from(run / 4) * BLOCK)).bits(2 * (run % 4), 3)
}

/// Bit `run` of byte `l` belongs to element `l` of the run.
#[inline(always)]
fn bit<M: VectorUnit>(bits: &[u8; BLOCK], run: u8) -> M::Codes {
    M::Codes::from(*bits).bits(run, 1)
}

/// The low nibbles of each 32 bytes are 32 elements, the high ones the next 32.
#[inline(always)]
fn four_bits<M: VectorUnit>(nibbles: &[u8], run: u8) -> M::Codes {
    M::Codes::from(*field(nibbles, usize::from(run / 2) * BLOCK)).bits(4 * (run % 2), 15)
}

/// The first 160 of 256 digits are five runs of 32 bytes, the next 80 are five runs of 16, and the
/// rest are four runs of 4.
#[inline(always)]
fn digits(unit: &[u8], run: u8) -> [u8; BLOCK] {
    let mut bytes = *field::<BLOCK>(unit, 0);
    if run >= 5 {
        let (first, second) = bytes.split_at_mut(BLOCK / 2);
        first.copy_from_slice(field::<16>(unit, 32));
        if run == 7 {
            second.as_chunks_mut::<4>().0.fill(*field(unit, 48));
        } else {
            second.copy_from_slice(first);
        }
    }
    let factors = &FACTORS[usize::from(run)];
    let mut codes = [0; BLOCK];
    for at in 0..BLOCK {
        codes[at] = ((u16::from(bytes[at].wrapping_mul(factors[at])) * 3) >> 8) as u8;
    }
    codes
}

/// Factors that move the digit of each element to the top of its byte.
const FACTORS: [[u8; BLOCK]; 8] = {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let mut factors = [[0; BLOCK]; 8];
    let mut at = 0;
    while at < 256 {
        let digit = match at {
            0..160 => at / 32,
            160..240 => (at - 160) / 16,
            _ => (at - 240) / 4,
        };
        factors[at / BLOCK][at % BLOCK] = POWERS[digit];
        at += 1;
    }
    factors
};

#[inline(always)]
fn q2_k<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    let (d, least) = (M::half(*field(unit, 80)), M::half(*field(unit, 82)));
    let packed: [u8; 16] = *field(unit, 0);
    (packed.map(|scale| d * f32::from(scale & 15)), packed.map(|scale| -least * f32::from(scale >> 4)))
}

#[inline(always)]
fn q3_k<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    let d = M::half(*field(unit, 108));
    let word = |at: usize| u32::from_le_bytes(*field(unit, 96 + at));
    let [first, second, high] = [word(0), word(4), word(8)];
    let low = |word: u32, shift: u32| word >> shift & 0x0f0f_0f0f;
    let scales = [low(first, 0), low(second, 0), low(first, 4), low(second, 4)];
    let mut bytes = [0; 16];
    for (at, (bytes, low)) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(scales).enumerate() {
        *bytes = (low | (high >> (2 * at) & 0x0303_0303) << 4).to_le_bytes();
    }
    let scales = bytes.map(|scale| d * (f32::from(scale) - 32.0));
    (scales, scales.map(|scale| -4.0 * scale))
}

/// Computes factors from `d`, `dmin`, and eight scales and offsets of six bits.
#[inline(always)]
fn six_bits<M: VectorUnit>(units: &Units<'_>, factors: &mut Factors) {
    let (mut both, mut packed) = ([0; HALF], [&[0; 12]; HALF]);
    for row in 0..HALF {
        (both[row], packed[row]) = (u32::from_le_bytes(*field(units[row], 0)), field(units[row], 4));
    }
    let (d, mut least) = (M::halves(both), M::halves(both.map(|both| both >> 16)));
    for least in &mut least {
        *least = -*least;
    }
    M::six_bits(packed, &d, &least, factors);
}

#[inline(always)]
fn q6_k<M: VectorUnit>(unit: &[u8]) -> ([f32; 16], [f32; 16]) {
    let d = M::half(*field(unit, 208));
    let packed: [u8; 16] = *field(unit, 192);
    let scales = packed.map(|scale| d * f32::from(scale.cast_signed()));
    (scales, scales.map(|scale| -32.0 * scale))
}

#[inline(always)]
fn iq4_xs<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, high) = (M::half(*field(unit, 0)), u16::from_le_bytes(*field(unit, 2)));
    let mut scales = [0.0; 8];
    for (at, number) in scales.iter_mut().enumerate() {
        let scale = u16::from(unit[4 + at / 2] >> (at % 2 * 4) & 15) | (high >> (2 * at) & 3) << 4;
        *number = d * (f32::from(scale) - 32.0);
    }
    (scales, scales.map(|scale| -128.0 * scale))
}

#[inline(always)]
fn tq1_0<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let d = M::half(*field(unit, 52));
    ([d; 8], [-d; 8])
}

#[inline(always)]
fn tq2_0<M: VectorUnit>(unit: &[u8]) -> ([f32; 8], [f32; 8]) {
    let d = M::half(*field(unit, 64));
    ([d; 8], [-d; 8])
}
