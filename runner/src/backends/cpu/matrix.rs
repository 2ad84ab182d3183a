//! Products of activations with weights: `y = x · Wᵀ + b`. Weights are read where they are mapped.
//!
//! - Integer products, with activations rounded to 8 bits in blocks of 32, see
//!   [`int8`](super::int8): GGML types of up to 8 bits except `Q1_0`, `Q2_0`, `Q8_1` and `Q8_K`;
//!   affine groups; `mxfp4` and `nvfp4`.
//! - Float products, with activations rounded to BF16, see [`float`]: BF16, and FP8 with a scale
//!   for 32, 64, 128 … elements. This requires rows of a multiple of 32 elements and a CPU with
//!   BF16 instructions.
//! - Float products, with float32 activations, see [`float`]: plain types, and FP8, which is
//!   decoded on the fly for few rows of x. All other types are expanded row by row.
//!
//! See [`super::products`] for the way in which a region computes them.
#![expect(unsafe_code, reason = "threads write columns of one slice")]

use std::ops::Range;

use architectures::Rows;
use formats::encoding::Role;
use formats::weight::Arrays;
use formats::{Encoding, Weight};

use super::Cpu;
use crate::backend::{LowRank, MatrixSource, WeightSource};
use crate::mapped::MappedTensor;
use kernels::float::{self, GROUP};
use kernels::instructions::Instructions;
use kernels::pool::SharedSlice;
use kernels::rounded::Rounding;

/// A projection.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(super) weight: WeightSource,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rounding of activations for this weight.
    pub(super) rounding: Rounding,
    pub(super) bias: Option<Vec<f32>>,
    pub(super) adapters: Vec<LowRank<Cpu>>,
}

impl Matrix {
    pub(crate) fn new(source: MatrixSource<Cpu>, instructions: Instructions) -> Self {
        let [rows, columns] = source.weight.shape();
        let rounding = match &source.weight {
            WeightSource::Mapped { tensor, .. } => Rounding::of(tensor.encoding(), columns, instructions),
            _ => Rounding::None,
        };
        let MatrixSource { weight, bias, adapters } = source;
        Self { weight, rows, columns, rounding, bias, adapters }
    }

    /// Decodes a row to float32.
    pub(super) fn decode_row(&self, row: usize, out: &mut [f32]) {
        match &self.weight {
            WeightSource::Mapped { tensor, rows } => tensor.weight().decode_row(stored(row, *rows), out),
            WeightSource::Numbers { numbers, .. } => {
                out.copy_from_slice(&numbers[row * self.columns..][..self.columns]);
            }
            WeightSource::Transposed { tensor, columns } => {
                let weight = tensor.weight();
                float::with_second_buffer(weight.columns(), |whole| {
                    for (at, out) in out.iter_mut().enumerate() {
                        weight.decode_row(at, whole);
                        *out = whole[stored(row, *columns)];
                    }
                });
            }
        }
    }

    /// Returns whether the whole weight is stored transposed.
    fn is_transposed(&self) -> bool {
        matches!(&self.weight, WeightSource::Transposed { columns: None, .. })
    }

    /// Returns the numbers of rows and columns as stored.
    fn stored_shape(&self) -> (usize, usize) {
        if self.is_transposed() { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }

    /// Decodes a row of [`stored_shape`](Self::stored_shape) to float32.
    fn decode_stored_row(&self, row: usize, out: &mut [f32]) {
        match &self.weight {
            WeightSource::Transposed { tensor, columns: None } => tensor.weight().decode_row(row, out),
            _ => self.decode_row(row, out),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }
}

/// Returns the row of the tensor that is row `row` of the selected part.
pub(super) fn stored(row: usize, rows: Option<Rows>) -> usize {
    rows.map_or(row, |rows| rows.stored(row as u64) as usize)
}

impl Cpu {
    /// Computes `out = x · W + b` for some columns of a mapped `W` of `[input, columns]`. Each
    /// thread sums up the rows of W for a run of columns.
    pub(super) fn transposed_product(
        &self,
        tensor: &MappedTensor,
        columns: Option<Rows>,
        x: &[f32],
        out: &mut [f32],
        bias: Option<&[f32]>,
    ) {
        let weight = tensor.weight();
        let (inputs, width) = (weight.rows(), weight.columns());
        let m = x.len() / inputs;
        let outputs = out.len() / m;
        let out = SharedSlice::new(out);
        let runs = self.pool.threads().min(outputs.div_ceil(GROUP)).max(1);
        let run = outputs.div_ceil(runs);
        self.pool.run(runs, |range| {
            for index in range {
                let own = (index * run).min(outputs)..((index + 1) * run).min(outputs);
                // SAFETY: runs of columns do not overlap, and a region hands out each once.
                let row = |i: usize| unsafe { out.range(i * outputs + own.start..i * outputs + own.end) };
                for i in 0..m {
                    match bias {
                        Some(bias) => row(i).copy_from_slice(&bias[own.clone()]),
                        None => row(i).fill(0.0),
                    }
                }
                // Plain types allow decoding only the columns that the run needs.
                let first = if own.is_empty() { 0 } else { stored(own.start, columns) };
                let last = if own.is_empty() { 0 } else { stored(own.end - 1, columns) + 1 };
                let (first, last) = if is_plain(&weight) { (first, last) } else { (0, width) };
                float::with_second_buffer(last - first, |numbers| {
                    for input in 0..inputs {
                        decode_part(&weight, input, first..last, numbers);
                        for i in 0..m {
                            let factor = x[i * inputs + input];
                            for (at, out) in own.clone().zip(row(i)) {
                                *out += factor * numbers[stored(at, columns) - first];
                            }
                        }
                    }
                });
            }
        });
    }

    /// Multiplies each head of x with its own matrix, or with the transpose.
    pub(super) fn head_products<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Matrix + Sync,
        transposed: bool,
        x: &[f32],
        out: &mut [f32],
    ) {
        // The rows are read in the order in which they are stored, transposed or not.
        let (rows, columns) = by(0).stored_shape();
        let by_columns = transposed != by(0).is_transposed();
        let (input, output) = if by_columns { (rows, columns) } else { (columns, rows) };
        let m = x.len() / (input * heads);
        let out = SharedSlice::new(out);
        self.pool.run(heads, |range| {
            for head in range {
                let matrix = by(head);
                // SAFETY: heads do not overlap, and a region hands out each once.
                let out = |i: usize| unsafe { out.range((i * heads + head) * output..(i * heads + head + 1) * output) };
                let x = |i: usize| &x[(i * heads + head) * input..][..input];
                (0..m).for_each(|i| out(i).fill(0.0));
                float::with_buffer(columns, |numbers| {
                    for row in 0..rows {
                        matrix.decode_stored_row(row, numbers);
                        for i in 0..m {
                            if by_columns {
                                let factor = x(i)[row];
                                out(i).iter_mut().zip(&*numbers).for_each(|(out, number)| *out += factor * number);
                            } else {
                                out(i)[row] = float::dot(self.instructions, numbers, x(i));
                            }
                        }
                    }
                });
            }
        });
    }
}

fn is_plain(weight: &Weight<'_>) -> bool {
    matches!(weight.encoding(), Encoding::Plain(_))
}

/// Decodes some columns of a row; all columns if the type is not plain.
fn decode_part(weight: &Weight<'_>, row: usize, columns: Range<usize>, out: &mut [f32]) {
    let Encoding::Plain(dtype) = weight.encoding() else { return weight.decode_row(row, out) };
    let bytes = weight.array(Role::Weight);
    let size = bytes.len() / (weight.rows() * weight.columns());
    let at = (row * weight.columns() + columns.start) * size;
    let data = &bytes[at..at + columns.len() * size];
    let arrays = Arrays { data, ..Arrays::default() };
    Weight::again(Encoding::Plain(dtype), &[1, columns.len() as u64], arrays).decode_row(0, out);
}
