//! Products that are computed in one parallel region: all projections of the same rows, and all
//! runs of rows with projections of their own, such as experts. A task is a group of 16 rows of a
//! weight.
#![expect(unsafe_code, reason = "threads write columns of one slice")]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::PoisonError;

use architectures::Rows;
use formats::Weight;

use super::Cpu;
use super::matrix::{Matrix, stored};
use crate::backend::{LowRank, Run, WeightSource};
use kernels::arena::Buffer;
use kernels::float::{self, GROUP};
use kernels::instructions::{Instructions, Set};
use kernels::int8::{self, Panel};
use kernels::pool::SharedSlice;
use kernels::rounded::{Rounded, Rounding};

/// Number of multiplications from which a region is worth waking threads.
const PARALLEL_FROM: usize = 1 << 16;

/// The form in which the rows of a weight are multiplied.
enum Reader<'a> {
    Integers(int8::IntegerMatrix<'a>, Option<Rows>),
    Bf16(Weight<'a>, Option<Rows>),
    Mapped(Weight<'a>, Option<Rows>),
    Numbers(&'a [f32]),
}

/// One projection of one run of rows.
struct Task<'a> {
    reader: Reader<'a>,
    matrix: &'a Matrix,
    /// The rows of x.
    x: Range<usize>,
    /// `[all rows of x, width]`.
    out: &'a SharedSlice<'a, f32>,
    width: usize,
}

impl Cpu {
    /// Computes `x · Wᵀ + b` for several weights.
    pub(super) fn products<const N: usize>(&self, matrices: [&Matrix; N], x: &[f32]) -> [Buffer; N] {
        let rows = x.len() / matrices[0].columns;
        self.run_products(&[Run { by: 0, rows: 0..rows }], |_| matrices, x)
    }

    /// Computes `x · Wᵀ + b` for runs of rows, each with weights of its own; all runs have weights
    /// of the same shapes.
    ///
    /// # Panics
    /// The runs do not cover all rows in order, or corresponding weights differ in shape.
    pub(super) fn run_products<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Matrix; N] + Sync,
        x: &[f32],
    ) -> [Buffer; N] {
        let matrices = by(runs[0].by);
        let m = x.len() / matrices[0].columns;
        assert!(Run::are_all(runs, m), "runs are all rows");
        let mut out = matrices.map(|matrix| self.arena.take(m * matrix.rows));
        if m == 0 {
            return out;
        }
        self.compute(runs, &by, x, &mut out);
        for run in runs {
            for (matrix, out) in by(run.by).into_iter().zip(&mut out) {
                let of = |width: usize| run.rows.start * width..run.rows.end * width;
                self.add_others(matrix, &x[of(matrix.columns)], &mut out[of(matrix.rows)]);
            }
        }
        out
    }

    /// Computes the products of all weights that are stored by rows.
    fn compute<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: &(impl Fn(usize) -> [&'a Matrix; N] + Sync),
        x: &[f32],
        out: &mut [Buffer; N],
    ) {
        let matrices = by(runs[0].by);
        let columns = matrices[0].columns;
        let wanted = |rounding| runs.iter().flat_map(|run| by(run.by)).any(|matrix| matrix.rounding == rounding);
        // A panic may have left the buffers half-written; they are overwritten.
        let mut rounded = self.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        for rounding in [Rounding::Int8, Rounding::Bf16] {
            if wanted(rounding) {
                rounded.fill(rounding, &self.pool, self.instructions, x, columns);
            }
        }
        let out = out.each_mut().map(|out| SharedSlice::new(out));
        // Groups of the first matrix of each run, then those of the second, and so on.
        let counts = matrices.map(|matrix| matrix.rows.div_ceil(GROUP));
        let of_groups = |groups: Range<usize>| {
            SCRATCH.with_borrow_mut(|scratch| {
                let scratch = scratch.get_or_insert_with(Scratch::new);
                let (mut first, mut groups) = (0, groups);
                for (at, count) in counts.into_iter().enumerate() {
                    while groups.start < (first + count * runs.len()).min(groups.end) {
                        let index = (groups.start - first) / count;
                        let begin = first + index * count;
                        let own = groups.start - begin..(groups.end - begin).min(count);
                        groups.start = begin + own.end;
                        let (matrix, x_rows) = (by(runs[index].by)[at], runs[index].rows.clone());
                        let Some(reader) = Reader::of(matrix) else { continue };
                        let task = Task { reader, matrix, x: x_rows, out: &out[at], width: matrices[at].rows };
                        own.for_each(|group| task.group(group, self.instructions, x, &rounded, scratch));
                    }
                    first += count * runs.len();
                }
            });
        };
        let rows: usize = matrices.iter().map(|matrix| matrix.rows).sum();
        let groups = counts.iter().sum::<usize>() * runs.len();
        if x.len() * rows < PARALLEL_FROM { of_groups(0..groups) } else { self.pool.run(groups, of_groups) }
    }

    /// Adds the products that are not computed by rows of the weight: transposed weights and
    /// adapters.
    fn add_others(&self, matrix: &Matrix, x: &[f32], out: &mut [f32]) {
        if let WeightSource::Transposed { tensor, columns } = &matrix.weight {
            self.transposed_product(tensor, *columns, x, out, matrix.bias.as_deref());
        }
        for LowRank { down, up, scale } in &matrix.adapters {
            let [low] = self.products([down], x);
            let [added] = self.products([up], &low);
            out.iter_mut().zip(&*added).for_each(|(out, added)| *out += added * *scale as f32);
        }
    }
}

impl<'a> Reader<'a> {
    /// Returns the reader of a matrix; `None` if the weight is stored transposed.
    fn of(matrix: &'a Matrix) -> Option<Self> {
        match &matrix.weight {
            WeightSource::Mapped { tensor, rows } => {
                let weight = tensor.weight();
                let integers = if matrix.rounding == Rounding::Int8 { int8::IntegerMatrix::new(&weight) } else { None };
                Some(match integers {
                    Some(matrix) => Self::Integers(matrix, *rows),
                    None if matrix.rounding == Rounding::Bf16 => Self::Bf16(weight, *rows),
                    None => Self::Mapped(weight, *rows),
                })
            }
            WeightSource::Numbers { numbers, .. } => Some(Self::Numbers(numbers)),
            WeightSource::Transposed { .. } => None,
        }
    }
}

/// Scratch memory of a thread, used for one group at a time.
struct Scratch {
    /// `[x's rows, 16]`.
    sums: Vec<[f32; GROUP]>,
    panel: Box<Panel>,
    /// Expanded rows.
    rows: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    bf16: float::bf16_rows::RowScratch,
}

thread_local!(static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) });

impl Scratch {
    fn new() -> Self {
        Self {
            sums: Vec::new(),
            panel: Panel::new(),
            rows: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            bf16: float::bf16_rows::RowScratch::EMPTY,
        }
    }
}

impl Task<'_> {
    /// Computes a group of columns of the result, for all rows of x of the task.
    fn group(&self, group: usize, instructions: Instructions, x: &[f32], rounded: &Rounded, scratch: &mut Scratch) {
        let (rows, columns) = (self.matrix.rows, self.matrix.columns);
        assert!(rows == self.width, "weights of a kind are alike in shape");
        let own = group * GROUP..((group + 1) * GROUP).min(rows);
        let (begin, m) = (self.x.start, self.x.len());
        // The buffer never shrinks.
        if scratch.sums.len() < m {
            scratch.sums.resize(m, [0.0; GROUP]);
        }
        let Scratch { sums, panel, rows: expanded, .. } = scratch;
        let (sums, x) = (&mut sums[..m], &x[begin * columns..self.x.end * columns]);
        match &self.reader {
            Reader::Integers(matrix, part) => {
                let own = own.clone().map(|row| stored(row, *part));
                matrix.products(instructions, own, rounded.int8.after(begin), panel, sums);
            }
            #[cfg(target_arch = "x86_64")]
            Reader::Bf16(weight, part) => {
                assert!(instructions.set() == Set::Avx512Bf16, "who computes so has the instructions");
                let own = own.clone().map(|row| stored(row, *part));
                let x = rounded.bf16.after(begin, columns);
                // SAFETY: the set exists only if the machine has the instructions.
                unsafe { float::bf16_rows::products(weight, own, x, &mut scratch.bf16, sums) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            Reader::Bf16(..) => unreachable!("invariant: only some machines compute so"),
            Reader::Mapped(weight, part) => {
                let own = own.clone().map(|row| stored(row, *part));
                float::products(instructions, weight, own, x, expanded, sums);
            }
            Reader::Numbers(numbers) => {
                let own = &numbers[own.start * columns..own.end * columns];
                float::numbers(instructions, own, columns, x, sums);
            }
        }
        for (row, sums) in self.x.clone().zip(sums.iter()) {
            // SAFETY: a region hands out each group of each run once. Runs have disjoint rows, as
            // was asserted. Groups of a run have disjoint columns, since the weight has as many
            // rows as the results have columns.
            let out = unsafe { self.out.range(row * rows + own.start..row * rows + own.end) };
            match &self.matrix.bias {
                Some(bias) => {
                    for ((out, sum), bias) in out.iter_mut().zip(sums).zip(&bias[own.clone()]) {
                        *out = sum + bias;
                    }
                }
                // The compiler knows the size of a whole group.
                None => match out.first_chunk_mut::<GROUP>() {
                    Some(out) => *out = *sums,
                    None => out.copy_from_slice(&sums[..out.len()]),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests;
