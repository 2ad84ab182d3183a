//! Encoders of K-quants: a search for the scale of each sub-block, quantization of the scales, and
//! codes for the quantized scales.
//!
//! If the scale of a sub-block is quantized to 0, its codes remain those of the search. Source of
//! the algorithms: `quantize_row_q*_K_ref` in `ggml-quants.c`; see [`super::super::super_block`]
//! for the layouts.

use super::super::half;
use super::super::super_block::{ScalesAndMinima, pack_six_bits};
use super::extremes::largest_magnitude;
use super::fit::{Candidates, Fit, ZERO, above_minimum, side_by_side, step_by_step, symmetric};
use super::lanes::Lanes;
use super::rounding::nearest;

/// Scales and minima have 4 bits.
#[inline(always)]
pub(super) fn q2_k<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 84]) {
    let candidates = Candidates { levels: 3.0, first: -0.5, step: 0.1, steps: 15 };
    let sub_blocks = numbers.as_chunks::<16>().0;
    let fits = [
        fit_by_magnitude::<L>(eight(&sub_blocks[..8]), candidates),
        fit_by_magnitude::<L>(eight(&sub_blocks[8..]), candidates),
    ];
    let (d, scales) = of_four_bits(fits.map(|fit| fit.scale).as_flattened());
    let (dmin, minima) = of_four_bits(fits.map(|fit| fit.minimum).as_flattened());
    for i in 0..16 {
        block[i] = scales[i] | minima[i] << 4;
    }
    block[80..82].copy_from_slice(&d.to_le_bytes());
    block[82..].copy_from_slice(&dmin.to_le_bytes());

    let mut codes = [0; 256];
    for (at, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half::to_f32(d) * f32::from(block[at] & 15);
        let minimum = half::to_f32(dmin) * f32::from(block[at] >> 4);
        let search = (fits[at / 8].inverse[at % 8], fits[at / 8].base[at % 8]);
        codes_above_minimum(&sub_blocks[at], (scale, minimum), search, 3, codes);
    }
    block[16..80].copy_from_slice(&two_bits(&codes));
}

/// Fits sub-blocks with weights and errors proportional to the numbers' magnitude.
#[inline(always)]
fn fit_by_magnitude<L: Lanes>(sub_blocks: &[[f32; 16]; 8], candidates: Candidates) -> Fit {
    let numbers = side_by_side::<L, 16>(sub_blocks);
    let mut weights = numbers;
    for weight in &mut weights {
        *weight = weight.abs();
    }
    above_minimum(&numbers, &weights, candidates, L::abs)
}

/// Quantizes numbers to fifteenths of the largest; returns the fifteenth as a half, and the codes.
/// All are 0 if no number is positive.
#[inline(always)]
fn of_four_bits(numbers: &[f32]) -> (u16, [u8; 16]) {
    let greatest = numbers.iter().fold(0.0, |greatest, number| if *number > greatest { *number } else { greatest });
    let mut codes = [0; 16];
    if greatest > 0.0 {
        let inverse = 15.0 / greatest;
        for (code, number) in codes.iter_mut().zip(numbers) {
            *code = nearest(inverse * number) as u8;
        }
    }
    (half::from_f32(greatest / 15.0), codes)
}

/// Scales are signed and have 6 bits.
#[inline(always)]
pub(super) fn q3_k<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 110]) {
    let sub_blocks = numbers.as_chunks::<16>().0;
    let fits = [
        step_by_step(&side_by_side::<L, 16>(eight(&sub_blocks[..8])), 4.0),
        step_by_step(&side_by_side::<L, 16>(eight(&sub_blocks[8..])), 4.0),
    ];
    let extreme = most_extreme_scale(fits.map(|fit| fit.0).as_flattened());
    let (mut d, mut scales) = (0, [0; 16]);
    if extreme != 0.0 {
        let inverse = -32.0 / extreme;
        d = half::from_f32(1.0 / inverse);
        for (at, scale) in scales.iter_mut().enumerate() {
            let code = nearest(inverse * fits[at / 8].0[at % 8]) as i8;
            *scale = (code.clamp(-32, 31) + 32) as u8;
        }
    }
    block[96..108].copy_from_slice(&pack_six_bits(&scales));
    block[108..].copy_from_slice(&d.to_le_bytes());

    let mut codes = [0; 256];
    for (at, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half::to_f32(d) * (f32::from(scales[at]) - 32.0);
        if scale != 0.0 {
            codes_around_zero(&sub_blocks[at], 1.0, scale, 4, codes);
        } else if largest_magnitude::<L, 16>(&sub_blocks[at]) >= ZERO {
            for (code, found) in codes.iter_mut().zip(&fits[at / 8].1) {
                *code = (found[at % 8] + 4.0) as u8;
            }
        }
    }
    let mut high = [0; 32];
    for (bit, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        for (high, code) in high.iter_mut().zip(codes) {
            *high |= code >> 2 << bit;
        }
    }
    block[..32].copy_from_slice(&high);
    block[32..96].copy_from_slice(&two_bits(&codes));
}

/// Codes have 4 bits, above a minimum.
#[inline(always)]
pub(super) fn q4_k<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 144]) {
    let candidates = Candidates { levels: 15.0, first: -1.0, step: 0.1, steps: 20 };
    let mut codes = [0; 256];
    block[..16].copy_from_slice(&eight_scales_and_codes::<L>(numbers, candidates, &mut codes));
    block[16..].copy_from_slice(&nibbles(&codes));
}

/// Codes have 5 bits, above a minimum.
#[inline(always)]
pub(super) fn q5_k<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 176]) {
    let candidates = Candidates { levels: 31.0, first: -0.5, step: 0.1, steps: 15 };
    let mut codes = [0; 256];
    block[..16].copy_from_slice(&eight_scales_and_codes::<L>(numbers, candidates, &mut codes));
    let mut high = [0; 32];
    for (bit, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        for (high, code) in high.iter_mut().zip(codes) {
            *high |= code >> 4 << bit;
        }
    }
    block[16..48].copy_from_slice(&high);
    block[48..].copy_from_slice(&nibbles(&codes));
}

/// Computes the first fields of `Q4_K` and `Q5_K` (`d`, `dmin`, scales and minima of 6 bits), and
/// the codes.
#[inline(always)]
fn eight_scales_and_codes<L: Lanes>(numbers: &[f32; 256], candidates: Candidates, codes: &mut [u8; 256]) -> [u8; 16] {
    let sub_blocks = numbers.as_chunks::<32>().0;
    let fit = fit_eight::<L>(eight(sub_blocks), candidates);
    let (d, scales) = of_six_bits(&fit.scale);
    let (dmin, minima) = of_six_bits(&fit.minimum);
    for (at, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = half::to_f32(d) * f32::from(scales[at]);
        let minimum = half::to_f32(dmin) * f32::from(minima[at]);
        let search = (fit.inverse[at], fit.base[at]);
        codes_above_minimum(&sub_blocks[at], (scale, minimum), search, candidates.levels as i32, codes);
    }
    let mut head = [0; 16];
    head[..2].copy_from_slice(&d.to_le_bytes());
    head[2..4].copy_from_slice(&dmin.to_le_bytes());
    head[4..].copy_from_slice(&ScalesAndMinima { scales, minima }.pack());
    head
}

/// Fits sub-blocks; a number's weight is its magnitude plus the root mean square of the sub-block.
#[inline(always)]
fn fit_eight<L: Lanes>(sub_blocks: &[[f32; 32]; 8], candidates: Candidates) -> Fit {
    let numbers = side_by_side::<L, 32>(sub_blocks);
    let mut squares = L::splat(0.0);
    for number in &numbers {
        squares = squares.add(number.mul(*number));
    }
    let average = squares.div(L::splat(32.0)).sqrt();
    let mut weights = numbers;
    for weight in &mut weights {
        *weight = average.add(weight.abs());
    }
    above_minimum(&numbers, &weights, candidates, squared)
}

#[inline(always)]
fn squared<L: Lanes>(difference: L) -> L {
    difference.mul(difference)
}

/// Quantizes numbers to 63rds of the largest; returns the 63rd as a half, and the codes.
#[inline(always)]
fn of_six_bits(numbers: &[f32; 8]) -> (u16, [u8; 8]) {
    let greatest = numbers.iter().fold(0.0, |greatest, number| if *number > greatest { *number } else { greatest });
    let inverse = if greatest > 0.0 { 63.0 / greatest } else { 0.0 };
    (half::from_f32(greatest / 63.0), numbers.map(|number| (nearest(inverse * number) as u8).min(63)))
}

/// Codes are signed and have 6 bits; scales have 8 bits.
#[inline(always)]
pub(super) fn q6_k<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 210]) {
    let sub_blocks = numbers.as_chunks::<16>().0;
    let fits = [
        symmetric(&side_by_side::<L, 16>(eight(&sub_blocks[..8])), 32.0),
        symmetric(&side_by_side::<L, 16>(eight(&sub_blocks[8..])), 32.0),
    ];
    let extreme = most_extreme_scale(fits.map(|fit| fit.0).as_flattened());
    block.fill(0);
    if extreme.abs() < ZERO {
        return;
    }
    let inverse = -128.0 / extreme;
    let d = half::from_f32(1.0 / inverse);
    block[208..].copy_from_slice(&d.to_le_bytes());
    let mut codes = [0; 256];
    for (at, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = nearest(inverse * fits[at / 8].0[at % 8]).min(127) as i8;
        block[192 + at] = scale.cast_unsigned();
        let scale = half::to_f32(d) * f32::from(scale);
        if scale != 0.0 {
            codes_around_zero(&sub_blocks[at], 1.0, scale, 32, codes);
        } else if largest_magnitude::<L, 16>(&sub_blocks[at]) >= ZERO {
            codes_around_zero(&sub_blocks[at], fits[at / 8].1[at % 8], 1.0, 32, codes);
        }
    }
    for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
        let quarters = codes.as_chunks::<32>().0;
        for i in 0..32 {
            let [first, second, third, fourth] = [0, 1, 2, 3].map(|quarter| quarters[quarter][i]);
            block[64 * at + i] = first & 15 | third << 4;
            block[64 * at + 32 + i] = second & 15 | fourth << 4;
            block[128 + 32 * at + i] = first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6;
        }
    }
}

/// Returns the first scale with the largest magnitude.
#[inline(always)]
fn most_extreme_scale(scales: &[f32]) -> f32 {
    let larger = |extreme: f32, scale: &f32| if scale.abs() > extreme.abs() { *scale } else { extreme };
    scales.iter().fold(0.0, larger)
}

/// Computes codes for a scale and a minimum. If the scale is 0, the codes are those of the search,
/// given by inverse scale and base.
#[inline(always)]
fn codes_above_minimum<const N: usize>(
    numbers: &[f32; N],
    (scale, minimum): (f32, f32),
    (inverse, base): (f32, f32),
    levels: i32,
    codes: &mut [u8; N],
) {
    if scale == 0.0 {
        for (code, number) in codes.iter_mut().zip(numbers) {
            *code = nearest(inverse * (number - base)).clamp(0, levels) as u8;
        }
    } else {
        for (code, number) in codes.iter_mut().zip(numbers) {
            *code = nearest((number + minimum) / scale).clamp(0, levels) as u8;
        }
    }
}

/// Computes codes as `number · factor / divisor`, offset by `levels`.
#[inline(always)]
fn codes_around_zero<const N: usize>(numbers: &[f32; N], factor: f32, divisor: f32, levels: i32, codes: &mut [u8; N]) {
    for (code, number) in codes.iter_mut().zip(numbers) {
        *code = (nearest(number * factor / divisor).clamp(-levels, levels - 1) + levels) as u8;
    }
}

/// Packs the low two bits: in each half of 128 codes, codes 32 apart share a byte.
#[inline(always)]
fn two_bits(codes: &[u8; 256]) -> [u8; 64] {
    let mut packed = [0; 64];
    for (at, packed) in packed.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let quarters = codes[128 * at..][..128].as_chunks::<32>().0;
        for i in 0..32 {
            let [first, second, third, fourth] = [0, 1, 2, 3].map(|quarter| quarters[quarter][i] & 3);
            packed[i] = first | second << 2 | third << 4 | fourth << 6;
        }
    }
    packed
}

/// Packs low nibbles: codes 32 apart share a byte.
#[inline(always)]
fn nibbles(codes: &[u8; 256]) -> [u8; 128] {
    let mut packed = [0; 128];
    for (at, packed) in packed.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let halves = codes[64 * at..][..64].as_chunks::<32>().0;
        for i in 0..32 {
            packed[i] = halves[0][i] & 15 | halves[1][i] << 4;
        }
    }
    packed
}

#[inline(always)]
fn eight<const N: usize>(sub_blocks: &[[f32; N]]) -> &[[f32; N]; 8] {
    sub_blocks.first_chunk().expect("invariant: a super-block has 8 or 16 sub-blocks")
}
