//! GGML's small blocks: codes with one scale, low nibbles the first half of a group, high ones the second.

use formats::codec::codebook;

use super::{Codes, Layout, Machine, Numbers, Rows, Units, field};
use crate::backends::cpu::int8::BLOCK;
use crate::backends::cpu::int8::panel::HALF;

/// The steps of `IQ4_NL` and `IQ4_XS`, and 128.
pub(super) const STEPS: [u8; 16] = {
    let mut codes = [0; 16];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = codebook::STEPS[at].cast_unsigned() ^ 128;
        at += 1;
    }
    codes
};
/// Doubled E2M1 numbers, and 12.
pub(super) const E2M1: [u8; 16] = {
    let mut codes = [0; 16];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = (codebook::E2M1[at] as i8 + 12).cast_unsigned();
        at += 1;
    }
    codes
};

/// Half `d`; nibbles.
pub(in crate::backends::cpu::int8) struct Q4_0;
/// Half `d`, half `m`; nibbles.
pub(in crate::backends::cpu::int8) struct Q4_1;
/// Half `d`; fifth bits; nibbles.
pub(in crate::backends::cpu::int8) struct Q5_0;
/// Half `d`, half `m`; fifth bits; nibbles.
pub(in crate::backends::cpu::int8) struct Q5_1;
/// Half `d`; signed codes.
pub(in crate::backends::cpu::int8) struct Q8_0;
/// Half `d`; nibbles that name steps.
pub(in crate::backends::cpu::int8) struct Iq4Nl;
/// An exponent; nibbles that are E2M1 numbers.
pub(in crate::backends::cpu::int8) struct Mxfp4;
/// Four unsigned E4M3 scales, each for 16 E2M1 numbers.
pub(in crate::backends::cpu::int8) struct Nvfp4;

/// Defines a layout of blocks that begin with half `d`.
macro_rules! block {
    ($layout:ident, $bytes:literal, wide $wide:literal, $numbers:ident($number:literal), |$unit:ident| $codes:expr) => {
        impl Layout for $layout {
            const BYTES: usize = $bytes;
            const RUNS: usize = 1;
            const HALVES: bool = false;
            const WIDE: bool = $wide;

            #[inline(always)]
            fn codes<M: Machine>($unit: &[u8], _run: u8) -> M::Codes {
                $codes
            }

            #[inline(always)]
            fn numbers<M: Machine>(_rows: &Rows<'_>, _unit: usize, units: &Units<'_>, numbers: &mut Numbers) {
                $numbers::<M>(units, numbers, $number);
            }
        }
    };
}

block!(Q4_0, 18, wide false, scaled(-8.0), |unit| M::Codes::nibbles(field(unit, 2)));
block!(Q4_1, 20, wide false, shifted(2), |unit| M::Codes::nibbles(field(unit, 4)));
block!(Q5_0, 22, wide false, scaled(-16.0), |unit| five_bits::<M>(field(unit, 2)));
block!(Q5_1, 24, wide false, shifted(2), |unit| five_bits::<M>(field(unit, 4)));
block!(Q8_0, 34, wide true, scaled(-128.0), |unit| flipped::<M>(field(unit, 2)));
block!(Iq4Nl, 18, wide true, scaled(-128.0), |unit| M::Codes::nibbles(field(unit, 2)).lookup(&STEPS));

/// Signed codes, and 128.
#[inline(always)]
fn flipped<M: Machine>(codes: &[u8; BLOCK]) -> M::Codes {
    let mut words = [0; BLOCK];
    for (word, codes) in words.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
        *word = (u64::from_le_bytes(*codes) ^ 0x8080_8080_8080_8080).to_le_bytes();
    }
    words.into()
}

/// `m = zero · d`.
#[inline(always)]
fn scaled<M: Machine>(units: &Units<'_>, numbers: &mut Numbers, zero: f32) {
    let scales = halves_at::<M>(units, 0);
    numbers.scales[0] = scales;
    for (offset, scale) in numbers.offsets[0].iter_mut().zip(scales) {
        *offset = zero * scale;
    }
}

/// Half `m` lies at `place`.
#[inline(always)]
fn shifted<M: Machine>(units: &Units<'_>, numbers: &mut Numbers, place: usize) {
    numbers.scales[0] = halves_at::<M>(units, 0);
    numbers.offsets[0] = halves_at::<M>(units, place);
}

/// Numbers at a place of each row's unit.
#[inline(always)]
fn halves_at<M: Machine>(units: &Units<'_>, place: usize) -> [f32; HALF] {
    let mut bits = [[0; 2]; HALF];
    for (row, bits) in bits.iter_mut().enumerate() {
        *bits = *field(units[row], place);
    }
    M::halves(&bits)
}

/// Fifth bits, then nibbles.
#[inline(always)]
fn five_bits<M: Machine>(packed: &[u8; 20]) -> M::Codes {
    M::Codes::nibbles(field(packed, 4)).with(M::Codes::spread(*field(packed, 0)), 4)
}

impl Layout for Mxfp4 {
    const BYTES: usize = 17;
    const RUNS: usize = 1;
    const HALVES: bool = false;
    const WIDE: bool = false;

    #[inline(always)]
    fn codes<M: Machine>(unit: &[u8], _run: u8) -> M::Codes {
        M::Codes::nibbles(field(unit, 1)).lookup(&E2M1)
    }

    #[inline(always)]
    fn numbers<M: Machine>(_rows: &Rows<'_>, _unit: usize, units: &Units<'_>, numbers: &mut Numbers) {
        for (at, unit) in units.iter().enumerate() {
            let d = codebook::half_of_e8m0(unit[0]);
            (numbers.scales[0][at], numbers.offsets[0][at]) = (d, -12.0 * d);
        }
    }
}

impl Layout for Nvfp4 {
    const BYTES: usize = 36;
    const RUNS: usize = 2;
    const HALVES: bool = true;
    const WIDE: bool = false;

    #[inline(always)]
    fn codes<M: Machine>(unit: &[u8], run: u8) -> M::Codes {
        // The nibbles of each eight bytes are 16 elements: the middle two quarters change places.
        let codes: [u8; BLOCK] = M::Codes::nibbles(field(unit, 4 + 16 * usize::from(run))).lookup(&E2M1).into();
        let mut ordered = codes;
        ordered[8..16].copy_from_slice(&codes[16..24]);
        ordered[16..24].copy_from_slice(&codes[8..16]);
        ordered.into()
    }

    #[inline(always)]
    fn numbers<M: Machine>(_rows: &Rows<'_>, _unit: usize, units: &Units<'_>, numbers: &mut Numbers) {
        for (row, unit) in units.iter().enumerate() {
            for (part, code) in field::<4>(unit, 0).iter().enumerate() {
                let d = codebook::half_of_ue4m3(*code);
                (numbers.scales[part][row], numbers.offsets[part][row]) = (d, -12.0 * d);
            }
        }
    }
}
