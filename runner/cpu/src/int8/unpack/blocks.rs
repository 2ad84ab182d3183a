//! GGML's small blocks: codes with one scale. Low nibbles are the first half of a group, high ones
//! the second.

use formats::codec::codebook;

use super::{Codes, Factors, Nibbles, Order, RowLayout, Units, UnpackedRows, VectorUnit, field};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// The steps of `IQ4_NL` and `IQ4_XS`, plus 128.
pub(super) const STEPS: [u8; 16] = {
    let mut codes = [0; 16];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = codebook::STEPS[at].cast_unsigned() ^ 128;
        at += 1;
    }
    codes
};
/// Doubled E2M1 numbers, plus 12.
pub(super) const E2M1: [u8; 16] = {
    let mut codes = [0; 16];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = (codebook::E2M1[at] as i8 + 12).cast_unsigned();
        at += 1;
    }
    codes
};

/// `d` as float16; nibbles.
pub(in crate::int8) struct Q4_0;
/// `d` and `m` as float16; nibbles.
pub(in crate::int8) struct Q4_1;
/// `d` as float16; fifth bits; nibbles.
pub(in crate::int8) struct Q5_0;
/// `d` and `m` as float16; fifth bits; nibbles.
pub(in crate::int8) struct Q5_1;
/// `d` as float16; signed codes.
pub(in crate::int8) struct Q8_0;
/// `d` as float16; nibbles that are indices of steps.
pub(in crate::int8) struct Iq4Nl;
/// An exponent; nibbles that are E2M1 numbers.
pub(in crate::int8) struct Mxfp4;
/// Four unsigned E4M3 scales, each for 16 E2M1 numbers.
pub(in crate::int8) struct Nvfp4;

/// Defines a layout of blocks that begin with `d` as float16.
macro_rules! block {
    ($layout:ident, $bytes:literal, wide $wide:literal, $factors:ident($number:literal), nibbles $nibbles:expr) => {
        block!(@ $layout, $bytes, $wide, $factors, $number, Some($nibbles), |unit, run| $nibbles.codes::<M>(unit, run));
    };
    ($layout:ident, $bytes:literal, wide $wide:literal, $factors:ident($number:literal), |$unit:ident| $codes:expr) => {
        block!(@ $layout, $bytes, $wide, $factors, $number, None, |$unit, _run| $codes);
    };
    (@ $layout:ident, $bytes:literal, $wide:literal, $factors:ident, $number:literal, $nibbles:expr,
        |$unit:ident, $run:ident| $codes:expr) => {
        impl RowLayout for $layout {
            const BYTES: usize = $bytes;
            const RUNS: usize = 1;
            const HALVES: bool = false;
            const WIDE: bool = $wide;
            const NIBBLES: Option<Nibbles> = $nibbles;

            #[inline(always)]
            fn codes<M: VectorUnit>($unit: &[u8], $run: u8) -> M::Codes {
                $codes
            }

            #[inline(always)]
            fn factors<M: VectorUnit>(_rows: &UnpackedRows<'_>, _unit: usize, units: &Units<'_>, factors: &mut Factors) {
                $factors::<M>(units, factors, $number);
            }
        }
    };
}

block!(Q4_0, 18, wide false, scaled(-8.0), nibbles halves(2, None));
block!(Q4_1, 20, wide false, shifted(2), nibbles halves(4, None));
block!(Q5_0, 22, wide false, scaled(-16.0), |unit| five_bits::<M>(field(unit, 2)));
block!(Q5_1, 24, wide false, shifted(2), |unit| five_bits::<M>(field(unit, 4)));
block!(Q8_0, 34, wide true, scaled(-128.0), |unit| flipped::<M>(field(unit, 2)));
block!(Iq4Nl, 18, wide true, scaled(-128.0), nibbles halves(2, Some(&STEPS)));

/// Returns the order of nibbles from a place on: low ones, then high ones.
pub(super) const fn halves(at: usize, table: Option<&'static [u8; 16]>) -> Nibbles {
    Nibbles { at, order: Order::Halves, table }
}

/// Returns signed codes plus 128.
#[inline(always)]
fn flipped<M: VectorUnit>(codes: &[u8; BLOCK]) -> M::Codes {
    let mut words = [0; BLOCK];
    for (word, codes) in words.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
        *word = (u64::from_le_bytes(*codes) ^ 0x8080_8080_8080_8080).to_le_bytes();
    }
    words.into()
}

/// Sets `d`, and `m = zero · d`.
#[inline(always)]
fn scaled<M: VectorUnit>(units: &Units<'_>, factors: &mut Factors, zero: f32) {
    let scales = halves_at::<M>(units, 0);
    factors.scales[0] = scales;
    for (offset, scale) in factors.offsets[0].iter_mut().zip(scales) {
        *offset = zero * scale;
    }
}

/// Sets `d`, and `m` from the float16 number at `place`.
#[inline(always)]
fn shifted<M: VectorUnit>(units: &Units<'_>, factors: &mut Factors, place: usize) {
    factors.scales[0] = halves_at::<M>(units, 0);
    factors.offsets[0] = halves_at::<M>(units, place);
}

/// Converts the float16 number at a place of each row's unit.
#[inline(always)]
fn halves_at<M: VectorUnit>(units: &Units<'_>, place: usize) -> [f32; HALF] {
    let mut bits = [0; HALF];
    for (row, bits) in bits.iter_mut().enumerate() {
        // Also loads the two bytes behind the number, because a 32-bit load is cheaper.
        *bits = u32::from_le_bytes(*field(units[row], place));
    }
    M::halves(bits)
}

/// Unpacks fifth bits, followed by nibbles.
#[inline(always)]
fn five_bits<M: VectorUnit>(packed: &[u8; 20]) -> M::Codes {
    M::Codes::nibbles(field(packed, 4)).with(M::Codes::spread(*field(packed, 0)), 4)
}

impl RowLayout for Mxfp4 {
    const BYTES: usize = 17;
    const RUNS: usize = 1;
    const HALVES: bool = false;
    const WIDE: bool = false;

    const NIBBLES: Option<Nibbles> = Some(halves(1, Some(&E2M1)));

    #[inline(always)]
    fn codes<M: VectorUnit>(unit: &[u8], run: u8) -> M::Codes {
        halves(1, Some(&E2M1)).codes::<M>(unit, run)
    }

    #[inline(always)]
    fn factors<M: VectorUnit>(_rows: &UnpackedRows<'_>, _unit: usize, units: &Units<'_>, factors: &mut Factors) {
        for (at, unit) in units.iter().enumerate() {
            let d = codebook::half_of_e8m0(unit[0]);
            (factors.scales[0][at], factors.offsets[0][at]) = (d, -12.0 * d);
        }
    }
}

/// Order of the nibbles of `NVFP4`.
const QUARTERS: Nibbles = Nibbles { at: 4, order: Order::Quarters, table: Some(&E2M1) };

impl RowLayout for Nvfp4 {
    const BYTES: usize = 36;
    const RUNS: usize = 2;
    const HALVES: bool = true;
    const WIDE: bool = false;

    const NIBBLES: Option<Nibbles> = Some(QUARTERS);

    #[inline(always)]
    fn codes<M: VectorUnit>(unit: &[u8], run: u8) -> M::Codes {
        QUARTERS.codes::<M>(unit, run)
    }

    #[inline(always)]
    fn factors<M: VectorUnit>(_rows: &UnpackedRows<'_>, _unit: usize, units: &Units<'_>, factors: &mut Factors) {
        let mut codes = [[0; HALF]; 4];
        for (row, unit) in units.iter().enumerate() {
            for (part, code) in field::<4>(unit, 0).iter().enumerate() {
                codes[part][row] = *code;
            }
        }
        for (part, codes) in codes.iter().enumerate() {
            for (row, code) in codes.iter().enumerate() {
                let d = codebook::half_of_ue4m3(*code);
                (factors.scales[part][row], factors.offsets[part][row]) = (d, -12.0 * d);
            }
        }
    }
}
