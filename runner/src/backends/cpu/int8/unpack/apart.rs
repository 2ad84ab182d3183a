//! MLX's codes, a stream of bits, with scales and biases in arrays of their own.

use formats::Dtype;
use formats::codec::{micro_scale, unpack_codes};
use formats::encoding::Micro;

use super::blocks::E2M1;
use super::{Codes, Machine, Source};
use crate::backends::cpu::int8::panel::Panel;
use crate::backends::cpu::int8::{BLOCK, Part};

/// Groups of unsigned codes: `w = scale · code + bias`.
#[inline(always)]
pub(super) fn affine<M: Machine>(part: &Part<'_>, panel: &mut Panel, bits: u8, group: usize) {
    match bits {
        2 => codes::<2>(part, panel),
        3 => codes::<3>(part, panel),
        4 => codes::<4>(part, panel),
        5 => codes::<5>(part, panel),
        6 => codes::<6>(part, panel),
        _ => codes::<8>(part, panel),
    }
    for (lane, source) in part.sources.iter().enumerate() {
        for at in 0..part.columns / BLOCK {
            let group = (part.first + at * BLOCK) / group;
            panel.scales[at][lane] = number::<M>(source, source.scales, group);
            panel.offsets[at][lane] = number::<M>(source, source.biases, group);
        }
    }
}

/// Groups of E2M1 numbers, each with a scale of a byte.
#[inline(always)]
pub(super) fn micro<M: Machine>(part: &Part<'_>, panel: &mut Panel, micro: Micro) {
    codes::<4>(part, panel);
    let group = micro.group() as usize;
    for (lane, source) in part.sources.iter().enumerate() {
        let row = &mut panel.rows[lane][..part.columns];
        for codes in row.as_chunks_mut::<BLOCK>().0 {
            *codes = M::Codes::from(*codes).lookup(&E2M1).into();
        }
        for (at, code) in source.scales[part.first / group..][..part.columns / group].iter().enumerate() {
            // Halved, because codes are doubled.
            let d = 0.5 * micro_scale(micro, *code, source.global);
            [panel.scales[at][lane], panel.offsets[at][lane]] = [d, -12.0 * d];
        }
    }
}

#[inline(always)]
fn codes<const BITS: usize>(part: &Part<'_>, panel: &mut Panel) {
    for (row, source) in panel.rows.iter_mut().zip(part.sources) {
        let packed = &source.codes[part.first / 8 * BITS..][..part.columns / 8 * BITS];
        unpack_codes::<BITS>(packed, &mut row[..part.columns]);
    }
}

#[inline(always)]
fn number<M: Machine>(source: &Source<'_>, numbers: &[u8], at: usize) -> f32 {
    let pair = || [numbers[2 * at], numbers[2 * at + 1]];
    match source.dtype {
        Dtype::F16 => M::half(pair()),
        Dtype::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes(pair())) << 16),
        _ => f32::from_le_bytes([numbers[4 * at], numbers[4 * at + 1], numbers[4 * at + 2], numbers[4 * at + 3]]),
    }
}
