//! CPU kernels over mapped weights: `y = x · Wᵀ`.
//!
//! | weights | how | activations |
//! |---|---|---|
//! | `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`; `int4`, `int8` | integer dot products, see [`int8`] | rounded to 8 bits by blocks of 32 |
//! | `Q2_K` … `Q6_K` | candle's integer dot products | rounded to 8 bits by blocks of 256 |
//! | all others | each row is expanded once, then float dot products | float |
//!
//! What attention reads of the KV cache is in [`attention`].
//!
//! The instruction set is chosen at run time; a generic build is as fast as a native one.

pub(crate) mod attention;
mod float;
mod int8;
mod parallel;
pub(crate) mod rotation;

use anyhow::Result;
use candle_core::quantized::GgmlType as Block;
use candle_core::quantized::k_quants::{self, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};
use formats::encoding::Role;
use formats::{Encoding, GgmlType, Weight};

use crate::mapped::blocks;

/// Multiplications below which a matrix is not worth waking other threads for.
const PARALLEL_FROM: usize = 1 << 16;

/// `out[i, j] = Σ x[i, c] · weight[j, c]` for `x` of `[m, columns]`, `weight` of `[rows, columns]`, `out` of `[m, rows]`.
pub(crate) fn matmul(weight: &Weight<'_>, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
    let (rows, columns) = (weight.rows(), weight.columns());
    if let Some(matrix) = int8::Matrix::new(weight) {
        let activations = int8::Activations::quantize(x, columns);
        rows_of(rows, columns, m, out, |row, sums| matrix.dot(row, &activations, sums));
        return Ok(());
    }
    if k_quants(weight, x, m, out)? {
        return Ok(());
    }
    rows_of(rows, columns, m, out, |row, sums| {
        float::with_buffer(columns, |expanded| {
            weight.decode_row(row, expanded);
            for (sum, x) in sums.iter_mut().zip(x.chunks_exact(columns)) {
                *sum = float::dot(expanded, x);
            }
        });
    });
    Ok(())
}

/// Computes with candle's kernels; `false` where it has none for the weight.
fn k_quants(weight: &Weight<'_>, x: &[f32], m: usize, out: &mut [f32]) -> Result<bool> {
    match weight.encoding() {
        Encoding::Blocks(GgmlType::Q2_K) => candle::<BlockQ2K>(weight, x, m, out),
        Encoding::Blocks(GgmlType::Q3_K) => candle::<BlockQ3K>(weight, x, m, out),
        Encoding::Blocks(GgmlType::Q4_K) => candle::<BlockQ4K>(weight, x, m, out),
        Encoding::Blocks(GgmlType::Q5_K) => candle::<BlockQ5K>(weight, x, m, out),
        Encoding::Blocks(GgmlType::Q6_K) => candle::<BlockQ6K>(weight, x, m, out),
        _ => Ok(false),
    }
}

/// Candle reads blocks in place: `false` where they do not lie at a multiple of what it needs.
fn candle<T: Block>(weight: &Weight<'_>, x: &[f32], m: usize, out: &mut [f32]) -> Result<bool> {
    let Some(blocks) = blocks::<T>(weight.array(Role::Weight)) else { return Ok(false) };
    k_quants::matmul((m, weight.columns(), weight.rows()), x, blocks, out)?;
    Ok(true)
}

/// Computes each weight row's `m` sums, in parallel where it is worth it, and puts them into columns of `out`.
fn rows_of(rows: usize, columns: usize, m: usize, out: &mut [f32], each: impl Fn(usize, &mut [f32]) + Sync) {
    // With one row of x the sums are the output; with more they are transposed at the end.
    let mut transposed = vec![0.0; if m == 1 { 0 } else { rows * m }];
    let sums: &mut [f32] = if m == 1 { out } else { &mut transposed };
    if rows * columns * m < PARALLEL_FROM {
        for (row, sums) in sums.chunks_exact_mut(m).enumerate() {
            each(row, sums);
        }
    } else {
        parallel::for_rows(sums, m, each);
    }
    if m > 1 {
        parallel::for_rows(out, rows, |i, line| {
            for (j, value) in line.iter_mut().enumerate() {
                *value = transposed[j * m + i];
            }
        });
    }
}

/// Calls `each` with every row of `out`, `width` elements each, in any order and from several threads.
pub(crate) fn for_rows(out: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    parallel::for_rows(out, width, each);
}
