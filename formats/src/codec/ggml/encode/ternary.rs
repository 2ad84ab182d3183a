//! Encoders of ternary types with the values -d, 0 and d, where `d` is the largest magnitude.
//! Source of the formulas: `quantize_row_tq*_ref` in `ggml-quants.c`.

use super::super::half;
use super::extremes::largest_magnitude;
use super::lanes::Lanes;
use super::rounding::{away_from_zero, reciprocal};

/// See [`super::super::ternary::tq1_0`] for the layout.
#[inline(always)]
pub(super) fn tq1_0<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 54]) {
    let d = largest_magnitude::<L, 256>(numbers);
    let inverse = reciprocal(d);
    let digits = numbers.map(|number| away_from_zero(number * inverse).wrapping_add(1) as u8);
    pack::<32>(&digits[..160], &mut block[..32]);
    pack::<16>(&digits[160..240], &mut block[32..48]);
    pack::<4>(&digits[240..], &mut block[48..52]);
    block[52..].copy_from_slice(&half::from_f32(d).to_le_bytes());
}

/// Packs five ternary digits into a byte, the first one most significant; a missing fifth digit is
/// 0.
#[inline(always)]
fn pack<const BYTES: usize>(digits: &[u8], bytes: &mut [u8]) {
    let runs = digits.as_chunks::<BYTES>().0;
    for (i, byte) in bytes.iter_mut().enumerate() {
        let number = (0..5)
            .fold(0u8, |number, run| number.wrapping_mul(3).wrapping_add(runs.get(run).map_or(0, |digits| digits[i])));
        *byte = (u32::from(number) * 256).div_ceil(243) as u8;
    }
}

/// See [`super::super::ternary::tq2_0`] for the layout.
#[inline(always)]
pub(super) fn tq2_0<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 66]) {
    let d = largest_magnitude::<L, 256>(numbers);
    let inverse = reciprocal(d);
    let codes = numbers.map(|number| away_from_zero(number * inverse).wrapping_add(1) as u8 & 3);
    let (runs, _) = codes.as_chunks::<32>();
    for (bytes, runs) in block.as_chunks_mut::<32>().0.iter_mut().zip(runs.as_chunks::<4>().0) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = runs[0][i] | runs[1][i] << 2 | runs[2][i] << 4 | runs[3][i] << 6;
        }
    }
    block[64..].copy_from_slice(&half::from_f32(d).to_le_bytes());
}
