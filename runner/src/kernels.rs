//! CPU kernels over mapped weights: `y = x · Wᵀ` and single rows of a matrix.
//!
//! | weights | how | activations |
//! |---|---|---|
//! | `Q4_0`, `Q4_1`, `Q8_0` | integer dot products, see [`int8`] | rounded to 8 bits by blocks of 32 |
//! | `Q2_K` … `Q6_K` | candle's integer dot products | rounded to 8 bits by blocks of 256 |
//! | F32, F16, BF16, `Q5_0`, `Q5_1` | each row is expanded once, then float dot products | float |
//!
//! The instruction set is chosen at run time; a generic build is as fast as a native one.

mod float;
mod int8;
mod parallel;

use anyhow::{Result, bail};
use candle_core::quantized::GgmlType as Block;
use candle_core::quantized::k_quants::{
    self, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
    BlockQ8K,
};
use formats::GgmlType;
use half::slice::HalfFloatSliceExt;

use crate::mapped::{MappedTensor, WeightType, blocks, numbers};

/// Multiplications below which a matrix is not worth waking other threads for.
const PARALLEL_FROM: usize = 1 << 16;

/// Whether [`matmul`] and [`dequantize`] know the type.
pub(crate) fn check_supported(kind: WeightType) -> Result<()> {
    use GgmlType as G;
    match kind {
        WeightType::F32
        | WeightType::F16
        | WeightType::Bf16
        | WeightType::Blocks(
            G::Q4_0 | G::Q4_1 | G::Q5_0 | G::Q5_1 | G::Q8_0 | G::Q2_K | G::Q3_K | G::Q4_K | G::Q5_K | G::Q6_K | G::Q8_K,
        ) => Ok(()),
        WeightType::Blocks(other) => bail!("weights of type {other} cannot be computed with yet"),
    }
}

/// `out[i, j] = Σ x[i, c] · weight[j, c]` for `x` of `[m, columns]`, `weight` of `[rows, columns]`, `out` of `[m, rows]`.
pub(crate) fn matmul(weight: &MappedTensor, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
    let (rows, columns) = (weight.shape[0], weight.shape[1]);
    let bytes = weight.bytes();
    match weight.kind {
        WeightType::Blocks(kind @ (GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q8_0)) => {
            let activations = int8::Activations::quantize(x, columns);
            let row_bytes = bytes.len() / rows;
            rows_of(rows, columns, m, out, |row, sums| {
                int8::dot(kind, &bytes[row * row_bytes..][..row_bytes], &activations, sums);
            });
        }
        WeightType::Blocks(GgmlType::Q2_K) => k_quants::matmul((m, columns, rows), x, blocks::<BlockQ2K>(bytes), out)?,
        WeightType::Blocks(GgmlType::Q3_K) => k_quants::matmul((m, columns, rows), x, blocks::<BlockQ3K>(bytes), out)?,
        WeightType::Blocks(GgmlType::Q4_K) => k_quants::matmul((m, columns, rows), x, blocks::<BlockQ4K>(bytes), out)?,
        WeightType::Blocks(GgmlType::Q5_K) => k_quants::matmul((m, columns, rows), x, blocks::<BlockQ5K>(bytes), out)?,
        WeightType::Blocks(GgmlType::Q6_K) => k_quants::matmul((m, columns, rows), x, blocks::<BlockQ6K>(bytes), out)?,
        kind => {
            let row_bytes = bytes.len() / rows;
            rows_of(rows, columns, m, out, |row, sums| {
                float::with_buffer(columns, |expanded| {
                    dequantize(kind, &bytes[row * row_bytes..][..row_bytes], expanded);
                    for (sum, x) in sums.iter_mut().zip(x.chunks_exact(columns)) {
                        *sum = float::dot(expanded, x);
                    }
                });
            });
        }
    }
    Ok(())
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

/// Expands whole rows to float: exact for every type that [`check_supported`] takes.
pub(crate) fn dequantize(kind: WeightType, bytes: &[u8], out: &mut [f32]) {
    use GgmlType as G;
    match kind {
        WeightType::F32 => out.copy_from_slice(numbers(bytes)),
        WeightType::F16 => numbers::<half::f16>(bytes).convert_to_f32_slice(out),
        WeightType::Bf16 => {
            for (value, number) in out.iter_mut().zip(numbers::<half::bf16>(bytes)) {
                *value = f32::from_bits(u32::from(number.to_bits()) << 16);
            }
        }
        WeightType::Blocks(G::Q4_0) => BlockQ4_0::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q4_1) => BlockQ4_1::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q5_0) => BlockQ5_0::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q5_1) => BlockQ5_1::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q8_0) => BlockQ8_0::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q2_K) => BlockQ2K::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q3_K) => BlockQ3K::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q4_K) => BlockQ4K::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q5_K) => BlockQ5K::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q6_K) => BlockQ6K::to_float(blocks(bytes), out),
        WeightType::Blocks(G::Q8_K) => BlockQ8K::to_float(blocks(bytes), out),
        WeightType::Blocks(other) => panic!("invariant: {other} was refused when the model was loaded"),
    }
}
