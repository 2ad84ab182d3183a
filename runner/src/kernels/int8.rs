//! Integer dot products of GGML's blocks of 32 with activations rounded to 8 bits.
//!
//! A block of weights is `w = d·q + m` (`Q4_0` has `m = -8·d`, `Q8_0` none), a block of activations `x = e·p`, so the dot
//! product is `d·e·Σ q·p + m·e·Σ p`: one integer sum for each pair of blocks, and one that depends on x alone.
#![expect(unsafe_code, reason = "SIMD")]

use formats::GgmlType;
use half::f16;

/// Elements in a block.
const BLOCK: usize = 32;
/// Rows of x that share the unpacking of a weight block.
const TILE: usize = 4;

/// Rows of x, rounded to 8 bits by blocks of 32.
pub(super) struct Activations {
    /// `p`, `[m, columns]`.
    quants: Vec<i8>,
    /// `e`, `[m, columns / 32]`.
    scales: Vec<f32>,
    /// `e·Σ p`, `[m, columns / 32]`.
    sums: Vec<f32>,
    /// Blocks in a row.
    blocks: usize,
}

impl Activations {
    /// Rounds `x` of `[m, columns]`; `columns` is a multiple of 32.
    pub(super) fn quantize(x: &[f32], columns: usize) -> Self {
        let count = x.len() / BLOCK;
        let mut this = Self {
            quants: vec![0; x.len()],
            scales: Vec::with_capacity(count),
            sums: Vec::with_capacity(count),
            blocks: columns / BLOCK,
        };
        for (x, quants) in x.chunks_exact(BLOCK).zip(this.quants.chunks_exact_mut(BLOCK)) {
            let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let scale = largest / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut sum = 0i32;
            for (quant, x) in quants.iter_mut().zip(x) {
                *quant = (x * inverse).round() as i8;
                sum += i32::from(*quant);
            }
            this.scales.push(scale);
            this.sums.push(scale * sum as f32);
        }
        this
    }
}

/// A weight row's dot products with all rows of x.
pub(super) fn dot(kind: GgmlType, row: &[u8], x: &Activations, sums: &mut [f32]) {
    let mut at = 0;
    while at < sums.len() {
        if sums.len() - at >= TILE {
            sums[at..at + TILE].copy_from_slice(&tile::<TILE>(kind, row, x, at));
            at += TILE;
        } else {
            sums[at] = tile::<1>(kind, row, x, at)[0];
            at += 1;
        }
    }
}

fn tile<const N: usize>(kind: GgmlType, row: &[u8], x: &Activations, at: usize) -> [f32; N] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        // SAFETY: the features were detected.
        return unsafe {
            match kind {
                GgmlType::Q8_0 => avx2::q8_0(row, x, at),
                GgmlType::Q4_1 => avx2::q4::<N, true>(row, x, at),
                _ => avx2::q4::<N, false>(row, x, at),
            }
        };
    }
    std::array::from_fn(|i| generic(kind, row, x, at + i))
}

/// The same for any machine, and the definition of the others.
fn generic(kind: GgmlType, row: &[u8], x: &Activations, at: usize) -> f32 {
    let number = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let block_bytes = kind.block_bytes() as usize;
    let mut total = 0.0;
    for (index, block) in row.chunks_exact(block_bytes).enumerate() {
        let position = at * x.blocks + index;
        let quants = &x.quants[position * BLOCK..][..BLOCK];
        let scale = number(block);
        let (offset, sum) = match kind {
            GgmlType::Q8_0 => (
                0.0,
                block[2..].iter().zip(quants).map(|(w, p)| i32::from(w.cast_signed()) * i32::from(*p)).sum::<i32>(),
            ),
            GgmlType::Q4_1 => (number(&block[2..]), nibbles(&block[4..], quants)),
            _ => (-8.0 * scale, nibbles(&block[2..], quants)),
        };
        total += scale * x.scales[position] * sum as f32 + offset * x.sums[position];
    }
    total
}

fn nibbles(packed: &[u8], quants: &[i8]) -> i32 {
    let (low, high) = quants.split_at(BLOCK / 2);
    let pairs = packed.iter().zip(low.iter().zip(high));
    pairs.map(|(w, (l, h))| i32::from(w & 15) * i32::from(*l) + i32::from(w >> 4) * i32::from(*h)).sum()
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, __m256i, _mm_and_si128, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm_set1_epi8,
        _mm_srli_epi16, _mm256_abs_epi8, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set_m128i, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps, _mm256_sign_epi8,
        _mm256_storeu_ps,
    };

    use super::{Activations, BLOCK};

    #[target_feature(enable = "avx2,fma,f16c")]
    fn number(bytes: &[u8]) -> f32 {
        let bits = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn load(bytes: &[i8]) -> __m256i {
        assert!(bytes.len() >= BLOCK);
        // SAFETY: there are 32 bytes.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn sum(lanes: __m256) -> f32 {
        let mut array = [0.0f32; 8];
        // SAFETY: the array has room for eight elements.
        unsafe { _mm256_storeu_ps(array.as_mut_ptr(), lanes) };
        array.iter().sum()
    }

    /// `Q4_1` where `MIN`, else `Q4_0`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn q4<const N: usize, const MIN: bool>(row: &[u8], x: &Activations, at: usize) -> [f32; N] {
        let head = if MIN { 4 } else { 2 };
        let mut lanes = [_mm256_setzero_ps(); N];
        let mut offsets = [0.0f32; N];
        for (index, block) in row.chunks_exact(head + BLOCK / 2).enumerate() {
            let scale = number(block);
            let offset = if MIN { number(&block[2..]) } else { -8.0 * scale };
            let packed = &block[head..];
            // SAFETY: 16 bytes follow the head of a block.
            let packed = unsafe { _mm_loadu_si128(packed.as_ptr().cast()) };
            let mask = _mm_set1_epi8(15);
            let low = _mm_and_si128(packed, mask);
            let high = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
            let weights = _mm256_set_m128i(high, low);
            for (i, (lanes, offsets)) in lanes.iter_mut().zip(&mut offsets).enumerate() {
                let position = (at + i) * x.blocks + index;
                let pairs = _mm256_maddubs_epi16(weights, load(&x.quants[position * BLOCK..]));
                let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                *lanes = _mm256_fmadd_ps(_mm256_set1_ps(scale * x.scales[position]), sums, *lanes);
                *offsets += offset * x.sums[position];
            }
        }
        std::array::from_fn(|i| sum(lanes[i]) + offsets[i])
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn q8_0<const N: usize>(row: &[u8], x: &Activations, at: usize) -> [f32; N] {
        let mut lanes = [_mm256_setzero_ps(); N];
        for (index, block) in row.chunks_exact(2 + BLOCK).enumerate() {
            let scale = number(block);
            // SAFETY: 32 bytes follow the scale of a block.
            let weights = unsafe { _mm256_loadu_si256(block[2..].as_ptr().cast()) };
            let magnitudes = _mm256_abs_epi8(weights);
            for (i, lanes) in lanes.iter_mut().enumerate() {
                let position = (at + i) * x.blocks + index;
                let quants = load(&x.quants[position * BLOCK..]);
                let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(quants, weights));
                let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                *lanes = _mm256_fmadd_ps(_mm256_set1_ps(scale * x.scales[position]), sums, *lanes);
            }
        }
        std::array::from_fn(|i| sum(lanes[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::dequantize;
    use crate::mapped::WeightType;

    /// Blocks with plausible scales and arbitrary quants.
    fn row(kind: GgmlType, blocks: usize) -> Vec<u8> {
        let mut row = Vec::new();
        for block in 0..blocks {
            let mut bytes: Vec<u8> =
                (0..kind.block_bytes()).map(|i| ((i * 89 + block as u64 * 31) % 256) as u8).collect();
            bytes[..2].copy_from_slice(&f16::from_f32(0.01 + block as f32 * 0.003).to_le_bytes());
            if kind == GgmlType::Q4_1 {
                bytes[2..4].copy_from_slice(&f16::from_f32(-0.07).to_le_bytes());
            }
            row.extend(bytes);
        }
        row
    }

    #[test]
    fn agrees_with_expanded_weights() {
        for kind in [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q8_0] {
            let (blocks, m) = (18, 7);
            let columns = blocks * BLOCK;
            let row = row(kind, blocks);
            let x: Vec<f32> = (0..m * columns).map(|i| ((i * 61 % 199) as f32 - 99.0) / 33.0).collect();
            let activations = Activations::quantize(&x, columns);
            let mut expanded = vec![0.0; columns];
            // The blocks are read in place, so they must lie where a blob's would.
            let aligned: Vec<u64> =
                row.chunks(8).map(|c| c.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))).collect();
            let bytes: Vec<u8> = aligned.iter().flat_map(|n| n.to_le_bytes()).take(row.len()).collect();
            dequantize(WeightType::Blocks(kind), &bytes, &mut expanded);
            let mut sums = vec![0.0; m];
            dot(kind, &row, &activations, &mut sums);
            for (i, sum) in sums.iter().enumerate() {
                let exact: f32 = expanded.iter().zip(&x[i * columns..]).map(|(w, x)| w * x).sum();
                let plain = generic(kind, &row, &activations, i);
                assert!((sum - plain).abs() < 1e-3 * plain.abs().max(1.0), "{kind} {i}: {sum} is not {plain}");
                // Each x is off by half a step at most.
                let step = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
                let bound = expanded.iter().map(|w| w.abs()).sum::<f32>() * step / 2.0;
                assert!((sum - exact).abs() < bound, "{kind} {i}: {sum} is more than {bound} from {exact}");
            }
        }
    }
}
