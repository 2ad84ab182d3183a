//! MLX's codes, a stream of bits, with scales and biases in separate arrays. A unit is 32 codes.
#![expect(unsafe_code, reason = "scales of rows are looked up with one check for all")]

use formats::Dtype;
use formats::codec::micro_scale;
use formats::encoding::Micro;

use super::blocks::E2M1;
use super::{Codes, Factors, Groups, Nibbles, Order, RowLayout, Units, UnpackedRows, VectorUnit};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// Number of units whose scales are computed together; adjacent scales of a row are loaded at once.
const TOGETHER: usize = 8;

/// Groups of unsigned codes of `BITS` bits: `w = scale · code + bias`.
pub(in crate::int8) struct Affine<const BITS: usize>;
/// E2M1 numbers with a power-of-two scale for each 32.
pub(in crate::int8) struct Mxfp4;
/// E2M1 numbers with an E4M3 scale for each 16.
pub(in crate::int8) struct Nvfp4;

/// Returns the order of a unit's nibbles: the nibbles of a byte are adjacent elements.
const fn pairs(table: Option<&'static [u8; 16]>) -> Nibbles {
    Nibbles { at: 0, order: Order::Pairs, table }
}

/// Returns `SIZE` bytes of an array for each row, from its place on. Windows that pass the end of
/// the array are replaced by copies in `spare`, see [`copied`].
#[inline(always)]
fn windows<'a, const SIZE: usize>(
    all: &'a [u8],
    places: [usize; HALF],
    spare: &'a mut Option<[[u8; SIZE]; HALF]>,
) -> [&'a [u8; SIZE]; HALF] {
    if places.iter().any(|at| at + SIZE > all.len()) {
        return spare.insert(copied(all, places)).each_ref();
    }
    places.map(|at| {
        // SAFETY: all windows are within the array, as was checked above.
        unsafe { &*all.as_ptr().add(at).cast() }
    })
}

/// Copies the windows, with zeros behind the end.
#[cold]
#[inline(never)]
fn copied<const SIZE: usize>(all: &[u8], places: [usize; HALF]) -> [[u8; SIZE]; HALF] {
    let mut windows = [[0; SIZE]; HALF];
    for (window, at) in windows.iter_mut().zip(places) {
        let rest = &all[at..];
        let count = rest.len().min(window.len());
        window[..count].copy_from_slice(&rest[..count]);
    }
    windows
}

impl<const BITS: usize> RowLayout for Affine<BITS> {
    const BYTES: usize = BITS * BLOCK / 8;
    const RUNS: usize = 1;
    const HALVES: bool = false;
    const WIDE: bool = BITS == 8;
    const NIBBLES: Option<Nibbles> = if BITS == 4 { Some(pairs(None)) } else { None };
    const TOGETHER: usize = TOGETHER;

    #[inline(always)]
    fn codes<M: VectorUnit>(unit: &[u8], run: u8) -> M::Codes {
        match BITS {
            4 => pairs(None).codes::<M>(unit, run),
            8 => M::Codes::from(*super::field(unit, 0)),
            _ => M::Codes::stream::<BITS>(unit),
        }
    }

    #[inline(always)]
    fn factors<M: VectorUnit>(rows: &UnpackedRows<'_>, unit: usize, _units: &Units<'_>, factors: &mut Factors) {
        let Groups { units, dtype, scales, biases, count, .. } = rows.place().groups;
        let group = unit >> units.trailing_zeros();
        let first = rows.rows().map(|row| row * count + group);
        for (numbers, parts) in [(scales, &mut factors.scales), (biases, &mut factors.offsets)] {
            let parts = parts.first_chunk_mut().expect("invariant: so many are made together");
            self::numbers::<M>(dtype, numbers, first, parts);
            // A group has several units. Copies from the end, so that no entry is overwritten
            // before it is read.
            if units > 1 {
                for unit in (1..TOGETHER).rev() {
                    parts[unit] = parts[unit >> units.trailing_zeros()];
                }
            }
        }
    }
}

/// Converts eight numbers of each row from its place on, transposed to lanes; zeros behind the end.
#[inline(always)]
fn numbers<M: VectorUnit>(dtype: Dtype, all: &[u8], first: [usize; HALF], out: &mut [[f32; HALF]; TOGETHER]) {
    if dtype == Dtype::F32 {
        let mut numbers = [[0.0; HALF]; HALF];
        let mut spare = None;
        for (numbers, bytes) in numbers.iter_mut().zip(windows::<32>(all, first.map(|at| 4 * at), &mut spare)) {
            for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = f32::from_le_bytes(*bytes);
            }
        }
        *out = M::transpose(&numbers);
        return;
    }
    let mut spare = None;
    let rows = windows(all, first.map(|at| 2 * at), &mut spare);
    if dtype == Dtype::F16 { M::float16(rows, out) } else { M::bf16(rows, out) }
}

/// Defines a layout of E2M1 numbers with `$scales` scales for 32 of them, which `$multipliers`
/// decodes.
macro_rules! micro {
    ($layout:ident, $scales:literal, $multipliers:ident) => {
        impl RowLayout for $layout {
            const BYTES: usize = BLOCK / 2;
            const RUNS: usize = 1;
            const HALVES: bool = $scales == 2;
            const WIDE: bool = false;
            const NIBBLES: Option<Nibbles> = Some(pairs(Some(&E2M1)));

            #[inline(always)]
            fn codes<M: VectorUnit>(unit: &[u8], run: u8) -> M::Codes {
                pairs(Some(&E2M1)).codes::<M>(unit, run)
            }

            #[inline(always)]
            fn factors<M: VectorUnit>(rows: &UnpackedRows<'_>, unit: usize, _units: &Units<'_>, factors: &mut Factors) {
                let Groups { scales, count, global, .. } = rows.place().groups;
                let mut codes = [[0; $scales]; HALF];
                for (codes, row) in codes.iter_mut().zip(rows.rows()) {
                    *codes = scales.as_chunks().0[row * (count / $scales) + unit];
                }
                let factor = global.unwrap_or(1.0);
                let multipliers = $multipliers::<M>(codes);
                for part in 0..$scales {
                    for lane in 0..HALF {
                        // Halved, because the codes are doubled.
                        let d = 0.5 * (multipliers[part][lane] * factor);
                        (factors.scales[part][lane], factors.offsets[part][lane]) = (d, -12.0 * d);
                    }
                }
            }
        }
    };
}

micro!(Mxfp4, 1, powers);
micro!(Nvfp4, 2, e4m3);

/// Decodes scales that are exponents.
#[inline(always)]
fn powers<M: VectorUnit>(codes: [[u8; 1]; HALF]) -> [[f32; HALF]; 1] {
    let mut powers = [0.0; HALF];
    for lane in 0..HALF {
        powers[lane] = micro_scale(Micro::Mxfp4, codes[lane][0], None);
    }
    [powers]
}

/// Decodes scales that are E4M3 numbers.
#[inline(always)]
fn e4m3<M: VectorUnit>(codes: [[u8; 2]; HALF]) -> [[f32; HALF]; 2] {
    let mut pairs = [0; HALF];
    for lane in 0..HALF {
        pairs[lane] = u16::from_le_bytes(codes[lane]);
    }
    M::e4m3(pairs)
}
