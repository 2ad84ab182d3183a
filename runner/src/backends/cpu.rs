//! CPU backend: activations in an arena; the kernels of `runner/cpu` over mapped weights, and its
//! thread pool.
//!
//! # Invariants
//! - Weights are read where they are mapped; no copy in another form is kept.
//! - Decoding a token allocates nothing once the arena holds the buffers that a token needs.

mod attention;
mod compression;
mod indexer;
mod matrix;
mod products;
mod recurrent;
mod state;
mod stream_shares;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use anyhow::{Result, bail, ensure};
use architectures::{HeadLayout, NormKind};
use kernels::arena::{Arena, Buffer};
use kernels::instructions::Instructions;
use kernels::pool::Pool;
use kernels::rounded::Rounded;
use kernels::{elementwise, rotation};

use crate::backend::{
    Activations, AnglesOf, Attend, Backend, BlockChoice, ChosenPositions, Compression, Convolution, DirectExecution,
    EntryChoice, HeadCounts, HeadPart, LEAST_SQUARE, LayerSequences, Map, MatrixSource, NormOf, Recurrence,
    RecurrenceInputs, Run, StateShape, StreamShares,
};
use matrix::Matrix;
pub(crate) use state::State;

/// Number of elements from which elementwise operations use several threads.
const PARALLEL_FROM: usize = 1 << 14;

/// The CPU backend.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pool: Arc<Pool>,
    instructions: Instructions,
    arena: Arena,
    /// Buffers for activations that are rounded as weights require.
    rounded: Arc<Mutex<Rounded>>,
    /// Whether the numbers of a token do not depend on how earlier tokens were computed; see
    /// `attention`.
    deterministic: bool,
}

/// Rows of activations.
#[derive(Debug)]
pub(crate) struct Act {
    numbers: Buffer,
    width: usize,
}

/// Cosines and sines of the tokens of a pass, `[tokens, half]`.
#[derive(Debug)]
pub(crate) struct Angles {
    cosines: Buffer,
    sines: Buffer,
    half: usize,
    layout: HeadLayout,
}

/// Multiplies each of several runs of a row by a function of one number.
fn scale_runs(x: &mut [f32], y: &[f32], function: impl Fn(f32) -> f32) {
    let run = x.len() / y.len();
    for (x, y) in x.chunks_exact_mut(run).zip(y) {
        let factor = function(*y);
        for x in x {
            *x *= factor;
        }
    }
}

impl Activations for Act {
    fn count(&self) -> usize {
        self.numbers.len() / self.width
    }
}

impl Cpu {
    /// Creates a backend that computes with these threads and instructions.
    pub(crate) fn new(pool: Arc<Pool>, instructions: Instructions) -> Self {
        let rounded = Arc::new(Mutex::new(Rounded::EMPTY));
        Self { pool, instructions, arena: Arena::default(), rounded, deterministic: false }
    }

    /// Sets whether results are independent of which tokens were generated and which belong to a
    /// prompt. Generation is slower then.
    pub(crate) fn deterministic(self, deterministic: bool) -> Self {
        Self { deterministic, ..self }
    }

    /// Calls `each` with every row of `out`, on several threads if `out` is large.
    fn each_row(&self, out: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
        if out.len() < PARALLEL_FROM {
            out.chunks_exact_mut(width).enumerate().for_each(|(row, out)| each(row, out));
        } else {
            self.pool.for_rows(out, width, each);
        }
    }
}

impl Backend for Cpu {
    type Act = Act;
    type Matrix = Matrix;
    type Vector = Arc<[f32]>;
    type State = State;
    type Angles = Angles;
    type Experts = Infallible;
    type Execution = DirectExecution;

    fn chunk(&self, _heads: HeadCounts, _length: usize, tokens: usize) -> usize {
        tokens
    }

    fn matrix(&self, source: MatrixSource<Self>) -> Result<Matrix> {
        Ok(Matrix::new(source, self.instructions))
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Arc<[f32]>> {
        Ok(numbers.into())
    }

    fn state(&self, shape: StateShape) -> Result<State> {
        Ok(State::new(shape.state, shape.kv_type))
    }

    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Act> {
        let mut numbers = self.arena.take(rows * width);
        fill(&mut numbers)?;
        Ok(Act { numbers, width })
    }

    fn read(&self, x: &Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        x.numbers[rows.start * x.width..rows.end * x.width].chunks_exact(x.width).try_for_each(each)
    }

    fn select(&self, x: &Act, rows: &[usize]) -> Result<Act> {
        let mut numbers = self.arena.take(rows.len() * x.width);
        for (row, out) in rows.iter().zip(numbers.chunks_exact_mut(x.width)) {
            out.copy_from_slice(&x.numbers[row * x.width..][..x.width]);
        }
        Ok(Act { numbers, width: x.width })
    }

    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Matrix; N] + Sync,
        x: &Act,
    ) -> Result<[Act; N]> {
        let shape = |run: &Run| by(run.by).map(|matrix| (matrix.rows(), matrix.columns()));
        ensure!(Run::are_all(runs, x.count()), "invariant: runs are all rows");
        let shapes = shape(&runs[0]);
        ensure!(shapes.iter().all(|own| own.1 == x.width), "invariant: projections of {shapes:?} get {}", x.width);
        ensure!(runs.iter().all(|run| shape(run) == shapes), "invariant: projections of runs are alike in shape");
        let mut widths = shapes.iter();
        Ok(self.run_products(runs, by, &x.numbers).map(|numbers| {
            let width = widths.next().map_or(1, |(rows, _)| *rows);
            Act { numbers, width }
        }))
    }

    fn project_heads<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Matrix + Sync,
        transposed: bool,
        x: &Act,
    ) -> Result<Act> {
        let width = heads * if transposed { by(0).columns() } else { by(0).rows() };
        let mut numbers = self.arena.take(x.count() * width);
        self.head_products(heads, by, transposed, &x.numbers, &mut numbers);
        Ok(Act { numbers, width })
    }

    fn norm(&self, norm: &NormOf<Self>, x: &Act) -> Result<Act> {
        let mut numbers = self.arena.take(x.numbers.len());
        let width = norm.width;
        let runs = norm.weight.len() / width;
        self.each_row(&mut numbers, width, |row, out| {
            let x = &x.numbers[row * width..][..width];
            let weight = &norm.weight[row % runs * width..][..width];
            match norm.kind {
                NormKind::Rms => elementwise::rms_norm(self.instructions, x, weight, norm.epsilon, out),
                NormKind::Layer => elementwise::layer_norm(self.instructions, x, weight, norm.epsilon, out),
                NormKind::Factors => {
                    out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * weight);
                }
            }
            if let Some(bias) = &norm.bias {
                out.iter_mut().zip(&**bias).for_each(|(x, bias)| *x += bias);
            }
        });
        Ok(Act { numbers, width: x.width })
    }

    fn map(&self, mut x: Act, map: Map<'_, Act>) -> Result<Act> {
        let width = x.width;
        self.each_row(&mut x.numbers, width, |row, x| {
            let of = |y: &'_ Act| row * y.width..(row + 1) * y.width;
            match map {
                Map::Add(y, scale) => elementwise::add(self.instructions, x, &y.numbers[of(y)], scale),
                Map::Scale(scale) => x.iter_mut().for_each(|x| *x *= scale),
                Map::Clamp { low, high } => x.iter_mut().for_each(|x| *x = x.clamp(low, high)),
                Map::SoftCap(cap) => x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh()),
                Map::Times(y) => x.iter_mut().zip(&y.numbers[of(y)]).for_each(|(x, y)| *x *= y),
                Map::Sigmoid(y) if y.width < width => scale_runs(x, &y.numbers[of(y)], elementwise::sigmoid),
                Map::Softplus(y) => scale_runs(x, &y.numbers[of(y)], elementwise::softplus),
                Map::Sigmoid(y) => {
                    x.iter_mut().zip(&y.numbers[of(y)]).for_each(|(x, y)| *x *= elementwise::sigmoid(*y));
                }
                Map::Silu(y) => {
                    x.iter_mut().zip(&y.numbers[of(y)]).for_each(|(x, y)| *x *= y * elementwise::sigmoid(*y));
                }
                Map::Activate(activation) => elementwise::activate(self.instructions, activation, x),
                Map::Xielu { positive, negative } => {
                    for x in x {
                        *x = elementwise::xielu(*x, positive, negative);
                    }
                }
                Map::SignedRoot(least) => x.iter_mut().for_each(|x| *x = elementwise::signed_root(*x, least)),
                Map::Gate(activation, y) => elementwise::gate(self.instructions, activation, x, &y.numbers[of(y)]),
            }
        });
        Ok(x)
    }

    fn part(&self, x: &Act, part: HeadPart) -> Result<Act> {
        let heads = x.width / part.width;
        let mut numbers = self.arena.take(x.count() * heads * part.count);
        for (out, x) in numbers.chunks_exact_mut(part.count).zip(x.numbers.chunks_exact(part.width)) {
            out.copy_from_slice(&x[part.first..part.first + part.count]);
        }
        Ok(Act { numbers, width: heads * part.count })
    }

    fn join(&self, a: &Act, b: &Act, heads: usize) -> Result<Act> {
        let (first, second) = (a.width / heads, b.width / heads);
        let mut numbers = self.arena.take(a.count() * (a.width + b.width));
        let parts = a.numbers.chunks_exact(first).zip(b.numbers.chunks_exact(second));
        for (out, (a, b)) in numbers.chunks_exact_mut(first + second).zip(parts) {
            out[..first].copy_from_slice(a);
            out[first..].copy_from_slice(b);
        }
        Ok(Act { numbers, width: a.width + b.width })
    }

    fn mix(&self, x: &Act, weights: &Act, parts: usize) -> Result<Act> {
        let (width, sums) = (x.width / parts, weights.width / parts);
        let mut numbers = self.arena.take(x.count() * sums * width);
        self.each_row(&mut numbers, sums * width, |token, out| {
            let x = &x.numbers[token * x.width..][..x.width];
            let weights = &weights.numbers[token * weights.width..][..weights.width];
            for (out, weights) in out.chunks_exact_mut(width).zip(weights.chunks_exact(parts)) {
                out.fill(0.0);
                for (part, weight) in x.chunks_exact(width).zip(weights) {
                    elementwise::add(self.instructions, out, part, *weight);
                }
            }
        });
        Ok(Act { numbers, width: sums * width })
    }

    fn stream_shares(&self, rule: &StreamShares<Self>, x: &Act) -> Result<Act> {
        let width = rule.made();
        let mut numbers = self.arena.take(x.count() * width);
        self.each_row(&mut numbers, width, |token, out| {
            stream_shares::make(rule, &x.numbers[token * x.width..][..x.width], out);
        });
        Ok(Act { numbers, width })
    }

    fn with_magnitude(&self, mut x: Act, of: &Act) -> Result<Act> {
        let width = x.width;
        self.each_row(&mut x.numbers, width, |row, x| {
            let squares = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>() / width as f32;
            let target = squares(&of.numbers[row * width..][..width]);
            let factor = (target / squares(x).max(LEAST_SQUARE)).sqrt();
            for x in x {
                *x *= factor;
            }
        });
        Ok(x)
    }

    fn excess(&self, mut x: Act, deviations: f32) -> Result<Act> {
        let width = x.width;
        self.each_row(&mut x.numbers, width, |_, x| {
            let mean = x.iter().sum::<f32>() / width as f32;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / width as f32;
            let cut = mean + deviations * variance.sqrt();
            for x in x {
                *x = (*x - cut).max(0.0);
            }
        });
        Ok(x)
    }

    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Angles> {
        let count = angles.positions.len() * angles.half();
        let (mut cosines, mut sines) = (self.arena.take(count), self.arena.take(count));
        angles.fill(&mut cosines, &mut sines);
        Ok(Angles { cosines, sines, half: angles.half(), layout: angles.layout })
    }

    fn rotate(&self, mut x: Act, part: HeadPart, angles: &Angles) -> Result<Act> {
        let (width, half) = (x.width, angles.half);
        self.each_row(&mut x.numbers, width, |token, x| {
            let own = token * half..(token + 1) * half;
            let (cosines, sines) = (&angles.cosines[own.clone()], &angles.sines[own]);
            for head in x.chunks_exact_mut(part.width) {
                rotation::rotate(&mut head[part.first..part.first + part.count], cosines, sines, angles.layout);
            }
        });
        Ok(x)
    }

    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        [query, key, value]: [&Act; 3],
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        let width = attend.heads * attend.value_dim;
        let mut numbers = self.arena.take(query.count() * width);
        let qkv = [&*query.numbers, &*key.numbers, &*value.numbers];
        self.attention(attend, qkv, sequences, &mut numbers)?;
        Ok(Act { numbers, width })
    }

    fn choose_blocks(
        &self,
        choice: &BlockChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        self.blocks(choice, sequences)
    }

    fn compress(
        &self,
        compression: &Compression<Self>,
        values: &Act,
        gates: &Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        let mut numbers = self.arena.take(values.count() * compression.width);
        self.compress_segments(compression, [values, gates], sequences, &mut numbers)?;
        Ok(Act { numbers, width: compression.width })
    }

    fn keep_entries(&self, rows: &Act, sequences: &mut LayerSequences<'_, Self>) -> Result<()> {
        sequences.each(|span, state| match state {
            State::Entries(own) => {
                let range = span.first * rows.width..(span.first + span.tokens) * rows.width;
                own.append(&rows.numbers[range], span.tokens)
            }
            _ => bail!("invariant: the layer has compressed entries"),
        })?;
        Ok(())
    }

    fn choose_entries(
        &self,
        choice: &EntryChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        self.choose_among_entries(choice, sequences)
    }

    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        let mut numbers = self.arena.take(x.numbers.len());
        recurrent::convolve(convolution, &x.numbers, x.width, sequences, &mut numbers)?;
        Ok(Act { numbers, width: x.width })
    }

    fn recur(
        &self,
        recurrence: &Recurrence<Self>,
        inputs: RecurrenceInputs<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        let mut numbers = self.arena.take(inputs.value.numbers.len());
        self.recurrence(recurrence, &inputs, sequences, &mut numbers)?;
        Ok(Act { numbers, width: inputs.value.width })
    }

    fn scatter(&self, mut x: Act, y: &Act, rows: &[usize], weights: &[f32]) -> Result<Act> {
        for ((row, weight), y) in rows.iter().zip(weights).zip(y.numbers.chunks_exact(y.width)) {
            let width = x.width;
            elementwise::add(self.instructions, &mut x.numbers[row * width..(row + 1) * width], y, *weight);
        }
        Ok(x)
    }
}
