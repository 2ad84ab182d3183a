//! Products of activations with weights, which are read where they are mapped: `y = x · Wᵀ + b`.
//!
//! | weights | how | activations |
//! |---|---|---|
//! | GGML's types of up to 8 bits but `Q1_0`, `Q2_0`, `Q8_1`, `Q8_K`; affine groups; `mxfp4`, `nvfp4` | as integers, see [`int8`] | rounded to 8 bits by blocks of 32 |
//! | BF16, and FP8 with a scale for 32, 64, 128 … elements, of rows of whole 32s, where there are instructions for BF16 | float, see [`float`] | rounded to BF16 |
//! | plain; FP8, read as it lies for few rows of x | float, see [`float`] | float |
//! | all others, expanded row by row | float, see [`float`] | float |
//!
//! See [`super::products`] for how a region computes them.
#![expect(unsafe_code, reason = "threads write columns of one slice")]

use std::ops::Range;

use architectures::Rows;
use formats::encoding::Role;
use formats::weight::Arrays;
use formats::{Encoding, Weight};

use super::Cpu;
use super::float::{self, GROUP};
use super::instructions::Instructions;
use super::rounded::Rounding;
use crate::backend::{LowRank, MatrixSource, WeightSource};
use crate::mapped::MappedTensor;
use crate::pool::SharedSlice;

/// A projection.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(super) weight: WeightSource,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// What activations are rounded to for it.
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

    /// A row as float32.
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

    /// Whether it lies the other way round, all of it.
    fn is_transposed(&self) -> bool {
        matches!(&self.weight, WeightSource::Transposed { columns: None, .. })
    }

    /// Rows and columns as they lie.
    fn stored_shape(&self) -> (usize, usize) {
        if self.is_transposed() { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }

    /// A row of [`stored_shape`](Self::stored_shape) as float32.
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

/// The row of a tensor that is row `row` of a part of it.
pub(super) fn stored(row: usize, rows: Option<Rows>) -> usize {
    rows.map_or(row, |rows| rows.stored(row as u64) as usize)
}

impl Cpu {
    /// `out = x · W + b` for some columns of a mapped `W` of `[input, columns]`: rows of W are added up, a run of columns in
    /// each thread.
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
                // Of a row only what the run needs, where elements lie by themselves.
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

    /// Each head of x by a matrix of its own, or by its transpose.
    pub(super) fn head_products<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Matrix + Sync,
        transposed: bool,
        x: &[f32],
        out: &mut [f32],
    ) {
        // The rows that lie in memory are read one after the other, whichever way they are meant.
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

/// Some columns of a row; of what is no plain type, all of them.
fn decode_part(weight: &Weight<'_>, row: usize, columns: Range<usize>, out: &mut [f32]) {
    let Encoding::Plain(dtype) = weight.encoding() else { return weight.decode_row(row, out) };
    let bytes = weight.array(Role::Weight);
    let size = bytes.len() / (weight.rows() * weight.columns());
    let at = (row * weight.columns() + columns.start) * size;
    let data = &bytes[at..at + columns.len() * size];
    let arrays = Arrays { data, ..Arrays::default() };
    Weight::again(Encoding::Plain(dtype), &[1, columns.len() as u64], arrays).decode_row(0, out);
}
