//! Products of activations with weights, which are read where they are mapped: `y = x · Wᵀ + b`.
//!
//! | weights | how | activations |
//! |---|---|---|
//! | GGML's types of up to 8 bits but `IQ1` … `IQ3`; affine groups; `mxfp4`, `nvfp4` | as integers, see [`int8`] | rounded to 8 bits by blocks of 32 |
//! | BF16, where there are instructions for it | float, see [`float`] | rounded to BF16 |
//! | plain; all others, expanded row by row | float, see [`float`] | float |
//!
//! All projections of the same rows are computed in one region: groups of 16 rows of all weights are its tasks.
#![expect(unsafe_code, reason = "threads write columns of one slice")]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::PoisonError;

use architectures::Rows;
use formats::encoding::Role;
use formats::weight::Arrays;
use formats::{Encoding, Weight};

use super::Cpu;
use super::arena::Buffer;
use super::float::{self, GROUP};
use super::instructions::{Instructions, Set};
use super::int8::{self, Panel};
use super::rounded::{Rounded, Rounding};
use crate::backend::{LowRank, MatrixSource, WeightSource};
use crate::mapped::MappedTensor;
use crate::pool::SharedSlice;

/// Multiplications below which a region is not worth waking threads for.
const PARALLEL_FROM: usize = 1 << 16;

/// A projection.
#[derive(Debug)]
pub(crate) struct Matrix {
    weight: WeightSource,
    rows: usize,
    columns: usize,
    /// What activations are rounded to for it.
    rounding: Rounding,
    bias: Option<Vec<f32>>,
    adapters: Vec<LowRank<Cpu>>,
}

/// A weight as the rows of a region are computed with.
enum Reader<'a> {
    Integers(int8::Matrix<'a>, Option<Rows>),
    Bf16(Weight<'a>, Option<Rows>),
    Mapped(Weight<'a>, Option<Rows>),
    Numbers(&'a [f32]),
}

/// A projection in a region.
struct Task<'a> {
    reader: Reader<'a>,
    matrix: &'a Matrix,
    out: SharedSlice<'a, f32>,
    /// The first of its groups among those of the region.
    first: usize,
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

    fn reader(&self) -> Option<Reader<'_>> {
        match &self.weight {
            WeightSource::Mapped { tensor, rows } => {
                let weight = tensor.weight();
                let integers = if self.rounding == Rounding::Int8 { int8::Matrix::new(&weight) } else { None };
                Some(match integers {
                    Some(matrix) => Reader::Integers(matrix, *rows),
                    None if self.rounding == Rounding::Bf16 => Reader::Bf16(weight, *rows),
                    None => Reader::Mapped(weight, *rows),
                })
            }
            WeightSource::Numbers { numbers, .. } => Some(Reader::Numbers(numbers)),
            WeightSource::Transposed { .. } => None,
        }
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
fn stored(row: usize, rows: Option<Rows>) -> usize {
    rows.map_or(row, |rows| rows.stored(row as u64) as usize)
}

impl Cpu {
    /// `x · Wᵀ + b` for several weights.
    pub(super) fn products<const N: usize>(&self, matrices: [&Matrix; N], x: &[f32]) -> [Buffer; N] {
        let columns = matrices[0].columns;
        let m = x.len() / columns;
        let mut out = matrices.map(|matrix| self.arena.take(m * matrix.rows));
        if m == 0 {
            return out;
        }
        self.rounded(&matrices.map(|matrix| matrix.rounding), x, columns, |rounded| {
            let mut first = 0;
            let mut outs = out.iter_mut();
            let tasks: [Option<Task<'_>>; N] = matrices.map(|matrix| {
                let out = outs.next().map(|out| SharedSlice::new(out))?;
                let task = Task { reader: matrix.reader()?, matrix, out, first };
                first += matrix.rows.div_ceil(GROUP);
                Some(task)
            });
            let of_groups = |groups: Range<usize>| {
                SCRATCH.with_borrow_mut(|scratch| {
                    let scratch = scratch.get_or_insert_with(Scratch::new);
                    for group in groups {
                        let mut tasks = tasks.iter().flatten().rev();
                        if let Some(task) = tasks.find(|task| task.first <= group) {
                            task.group(group - task.first, self.instructions, x, rounded, scratch);
                        }
                    }
                });
            };
            let work: usize = matrices.iter().map(|matrix| matrix.rows * columns * m).sum();
            if work < PARALLEL_FROM { of_groups(0..first) } else { self.pool.run(first, of_groups) }
        });
        for (matrix, out) in matrices.iter().zip(&mut out) {
            if let WeightSource::Transposed { tensor, columns } = &matrix.weight {
                self.transposed_product(tensor, *columns, x, out, matrix.bias.as_deref());
            }
            for LowRank { down, up, scale } in &matrix.adapters {
                let [low] = self.products([down], x);
                let [added] = self.products([up], &low);
                out.iter_mut().zip(&*added).for_each(|(out, added)| *out += added * *scale as f32);
            }
        }
        out
    }

    /// Lends x as it is wanted.
    fn rounded(&self, wanted: &[Rounding], x: &[f32], columns: usize, work: impl FnOnce(&Rounded)) {
        // What a panic has left in it is written anew.
        let mut rounded = self.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        for rounding in [Rounding::Int8, Rounding::Bf16] {
            if wanted.contains(&rounding) {
                rounded.fill(rounding, &self.pool, self.instructions, x, columns);
            }
        }
        work(&rounded);
    }

    /// `out = x · W + b` for some columns of a mapped `W` of `[input, columns]`: rows of W are added up, a run of columns in
    /// each thread.
    fn transposed_product(
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
    pub(super) fn head_products(&self, matrices: &[Matrix], transposed: bool, x: &[f32], out: &mut [f32]) {
        // The rows that lie in memory are read one after the other, whichever way they are meant.
        let (rows, columns) = matrices[0].stored_shape();
        let by_columns = transposed != matrices[0].is_transposed();
        let (input, output) = if by_columns { (rows, columns) } else { (columns, rows) };
        let m = x.len() / (input * matrices.len());
        let heads = matrices.len();
        let out = SharedSlice::new(out);
        self.pool.run(heads, |range| {
            for head in range {
                let matrix = &matrices[head];
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

/// Memory of a group, which each thread has once.
struct Scratch {
    /// `[x's rows, 16]`.
    sums: Vec<[f32; GROUP]>,
    panel: Box<Panel>,
    /// Expanded rows.
    rows: Vec<f32>,
}

thread_local!(static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) });

impl Scratch {
    fn new() -> Self {
        Self { sums: Vec::new(), panel: Panel::new(), rows: Vec::new() }
    }
}

impl Task<'_> {
    /// The results of a group of rows, for all rows of x.
    fn group(&self, group: usize, instructions: Instructions, x: &[f32], rounded: &Rounded, scratch: &mut Scratch) {
        let (rows, columns) = (self.matrix.rows, self.matrix.columns);
        let own = group * GROUP..((group + 1) * GROUP).min(rows);
        let m = x.len() / columns;
        // Room is only added.
        if scratch.sums.len() < m {
            scratch.sums.resize(m, [0.0; GROUP]);
        }
        let Scratch { sums, panel, rows: expanded } = scratch;
        let sums = &mut sums[..m];
        match &self.reader {
            Reader::Integers(matrix, part) => {
                let own = own.clone().map(|row| stored(row, *part));
                matrix.products(instructions, own, &rounded.int8, panel, sums);
            }
            #[cfg(target_arch = "x86_64")]
            Reader::Bf16(weight, part) => {
                let bytes = weight.array(Role::Weight);
                let mut all = [&bytes[..0]; GROUP];
                for (bytes_of, row) in all.iter_mut().zip(own.clone()) {
                    *bytes_of = &bytes[stored(row, *part) * 2 * columns..][..2 * columns];
                }
                assert!(instructions.set() == Set::Avx512Bf16, "who computes so has the instructions");
                // SAFETY: the set exists only where the machine has the instructions.
                unsafe { float::bf16_rows::products(&all[..own.len()], columns, &rounded.bf16, sums) };
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
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: groups do not overlap, and a region hands out each once.
            let out = unsafe { self.out.range(row * rows + own.start..row * rows + own.end) };
            match &self.matrix.bias {
                Some(bias) => {
                    for ((out, sum), bias) in out.iter_mut().zip(sums).zip(&bias[own.clone()]) {
                        *out = sum + bias;
                    }
                }
                // Of a whole group the size is known to the compiler.
                None => match out.first_chunk_mut::<GROUP>() {
                    Some(out) => *out = *sums,
                    None => out.copy_from_slice(&sums[..out.len()]),
                },
            }
        }
    }
}
