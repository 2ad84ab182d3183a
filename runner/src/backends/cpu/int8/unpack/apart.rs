//! MLX's codes, a stream of bits, with scales and biases in arrays of their own. A unit is 32 codes.

use formats::Dtype;
use formats::codec::{micro_scale, unpack_codes};
use formats::encoding::Micro;

use super::blocks::E2M1;
use super::{Codes, Groups, Layout, Machine, Numbers, Rows, Units};
use crate::backends::cpu::int8::BLOCK;

/// Groups of unsigned codes of so many bits: `w = scale · code + bias`.
pub(in crate::backends::cpu::int8) struct Affine<const BITS: usize>;
/// E2M1 numbers, a power of two for each 32.
pub(in crate::backends::cpu::int8) struct Mxfp4;
/// E2M1 numbers, an E4M3 scale for each 16.
pub(in crate::backends::cpu::int8) struct Nvfp4;

impl<const BITS: usize> Layout for Affine<BITS> {
    const BYTES: usize = BITS * BLOCK / 8;
    const RUNS: usize = 1;
    const HALVES: bool = false;
    const WIDE: bool = BITS == 8;

    #[inline(always)]
    fn codes<M: Machine>(unit: &[u8], _run: u8) -> M::Codes {
        if BITS == 4 {
            return M::Codes::pairs(super::field(unit, 0));
        }
        let mut codes = [0; BLOCK];
        unpack_codes::<BITS>(unit, &mut codes);
        codes.into()
    }

    #[inline(always)]
    fn numbers<M: Machine>(rows: &Rows<'_>, unit: usize, _units: &Units<'_>, numbers: &mut Numbers) {
        let Groups { size, dtype, scales, biases, count, .. } = rows.place.groups;
        for (lane, row) in rows.rows.into_iter().enumerate() {
            let group = row * count + unit * BLOCK / size;
            numbers.scales[0][lane] = number::<M>(dtype, scales, group);
            numbers.offsets[0][lane] = number::<M>(dtype, biases, group);
        }
    }
}

#[inline(always)]
fn number<M: Machine>(dtype: Dtype, numbers: &[u8], at: usize) -> f32 {
    let pair = || [numbers[2 * at], numbers[2 * at + 1]];
    match dtype {
        Dtype::F16 => M::half(pair()),
        Dtype::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes(pair())) << 16),
        _ => f32::from_le_bytes([numbers[4 * at], numbers[4 * at + 1], numbers[4 * at + 2], numbers[4 * at + 3]]),
    }
}

/// Defines a layout of E2M1 numbers with so many scales for 32 of them.
macro_rules! micro {
    ($layout:ident, $micro:expr, $scales:literal) => {
        impl Layout for $layout {
            const BYTES: usize = BLOCK / 2;
            const RUNS: usize = 1;
            const HALVES: bool = $scales == 2;
            const WIDE: bool = false;

            #[inline(always)]
            fn codes<M: Machine>(unit: &[u8], _run: u8) -> M::Codes {
                M::Codes::pairs(super::field(unit, 0)).lookup(&E2M1)
            }

            #[inline(always)]
            fn numbers<M: Machine>(rows: &Rows<'_>, unit: usize, _units: &Units<'_>, numbers: &mut Numbers) {
                let Groups { scales, count, global, .. } = rows.place.groups;
                for (lane, row) in rows.rows.into_iter().enumerate() {
                    for (part, code) in scales[row * count + $scales * unit..][..$scales].iter().enumerate() {
                        // Halved, because codes are doubled.
                        let d = 0.5 * micro_scale($micro, *code, global);
                        (numbers.scales[part][lane], numbers.offsets[part][lane]) = (d, -12.0 * d);
                    }
                }
            }
        }
    };
}

micro!(Mxfp4, Micro::Mxfp4, 1);
micro!(Nvfp4, Micro::Nvfp4, 2);
