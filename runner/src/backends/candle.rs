//! Backend on candle's tensors, for any device. It computes on GPUs; on the CPU, in float32, it is
//! the reference to which the CPU backend is compared.

mod act;
mod attention;
mod compression;
mod products;
mod recordings;
mod recurrent;
mod resident;
mod state;
mod stream_shares;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use architectures::{HeadLayout, NormKind};
use candle_core::{D, DType, Device, Tensor};
use device::GpuRuntime;
use protocol::limits::DEVICE_SCORES;

use crate::backend::{
    Activations, AnglesOf, Attend, Backend, Best, BlockChoice, ChosenPositions, Compression, Convolution, EntryChoice,
    ExpertsOf, HeadCounts, HeadPart, LEAST_SQUARE, LayerSequences, Map, MatrixSource, NormOf, Recurrence,
    RecurrenceInputs, Run, Selection, StateShape, StreamShares,
};
use crate::device::{self as devices, Opening};
use crate::holder_client::HolderClient;
use act::Act;
use act::composed::{by_head, flat, mapped, rotated};
use act::experts::Experts;
use act::matrix::CandleMatrix;
use recordings::RecordedExecution;
use resident::Resident;
pub(crate) use state::State;
use state::cached::{self, Cached};

/// A backend that computes on one candle device.
#[derive(Clone, Debug)]
pub(crate) struct Candle {
    device: Device,
    /// Name of the device in load plans.
    name: String,
    /// Whether all weights are expanded to float32, and everything is computed and kept in float32.
    reference: bool,
    /// Our kernels, if the device supports them.
    kernels: Option<Kernels>,
    /// Total size of the weights on the device, in bytes.
    bytes: Arc<AtomicU64>,
}

/// Our kernels, and the weights that they use.
#[derive(Clone, Debug)]
struct Kernels {
    machine: GpuRuntime,
    resident: Resident,
    /// Whether float products never round to the types of tensor cores. Set for comparisons.
    is_exact: bool,
    /// Whether repeated passes are recorded.
    records: bool,
}

/// Cosines and sines of the tokens of a pass, `[tokens, half]`.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    cosines: Tensor,
    sines: Tensor,
    layout: HeadLayout,
}

impl Candle {
    /// Creates a backend, with our kernels if the device supports them and `reference` is not set.
    ///
    /// # Errors
    /// The device fails to load our kernels.
    pub(crate) fn new(device: Device, reference: bool) -> Result<Self> {
        let machine = if reference { None } else { GpuRuntime::of(&device)? };
        let kernels =
            machine.map(|machine| Kernels { machine, resident: Resident::default(), is_exact: false, records: true });
        Ok(Self { name: devices::name(&device), device, reference, kernels, bytes: Arc::default() })
    }

    /// Creates a backend on an opened device.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub(crate) fn of(opening: Opening, reference: bool) -> Result<Self> {
        match opening {
            Opening::Candle(device) => Self::new(device, reference),
            Opening::Emulated(machine, name) => Ok(Self::emulated(machine, name)),
        }
    }

    /// Creates a backend that emulates our kernels on the CPU.
    pub(crate) fn emulated(machine: GpuRuntime, name: String) -> Self {
        let kernels = Some(Kernels { machine, resident: Resident::default(), is_exact: false, records: true });
        Self { device: Device::Cpu, name, reference: false, kernels, bytes: Arc::default() }
    }

    /// Uses weights that the holder process keeps on the device.
    pub(crate) fn with_holder(mut self, holder: HolderClient) -> Self {
        if let Some(kernels) = &mut self.kernels {
            kernels.resident = Resident::held(holder, self.name.clone());
        }
        self
    }

    /// Sets whether repeated passes are recorded.
    #[cfg(test)]
    pub(crate) fn with_recordings(mut self, records: bool) -> Self {
        if let Some(kernels) = &mut self.kernels {
            kernels.records = records;
        }
        self
    }

    /// Sets whether float products never round to the types of tensor cores.
    #[cfg(test)]
    pub(crate) fn with_exact_products(mut self, is_exact: bool) -> Self {
        if let Some(kernels) = &mut self.kernels {
            kernels.is_exact = is_exact;
        }
        self
    }

    /// Returns the name of the device in load plans.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns free and total bytes of the device's memory; `None` if the device does not report
    /// memory of its own.
    pub(crate) fn memory(&self) -> Option<(u64, u64)> {
        devices::memory(&self.device)
    }

    /// Returns the machine that runs our kernels, if the device supports them.
    #[cfg(test)]
    pub(crate) fn machine(&self) -> Option<&GpuRuntime> {
        self.kernels.as_ref().map(|kernels| &kernels.machine)
    }

    /// Returns the total size of the weights on the device, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Uploads numbers from the host.
    fn input(&self, [rows, width]: [usize; 2], numbers: Vec<f32>) -> Result<Tensor> {
        match &self.kernels {
            Some(kernels) => kernels.machine.input([rows, width], &numbers),
            None => Ok(Tensor::from_vec(numbers, (rows, width), &self.device)?),
        }
    }

    /// Notes an operation that is not a launch of our kernels, so that the pass cannot be recorded.
    fn by_candle(&self) {
        if let Some(kernels) = &self.kernels {
            kernels.machine.cannot_be_recorded();
        }
    }

    fn index(&self, rows: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_iter(rows.iter().map(|row| *row as u32), &self.device)?)
    }
}

impl Backend for Candle {
    type Act = Act;
    type Matrix = CandleMatrix;
    type Vector = Tensor;
    type State = State;
    type Angles = Angles;
    type Experts = Experts;
    type Execution = RecordedExecution;

    fn chunk(&self, heads: HeadCounts, length: usize, tokens: usize) -> usize {
        let heads = if self.kernels.is_some() { heads.without_kernels } else { heads.all };
        (DEVICE_SCORES / (heads * (length + tokens)).max(1)).clamp(1, tokens)
    }

    fn matrix(&self, source: MatrixSource<Self>) -> Result<CandleMatrix> {
        CandleMatrix::new(source, self)
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Tensor> {
        let count = numbers.len();
        Ok(Tensor::from_vec(numbers, count, &self.device)?)
    }

    fn state(&self, shape: StateShape) -> Result<State> {
        let machine = self.kernels.as_ref().map(|kernels| &kernels.machine);
        match machine
            .filter(|_| shape.has_plain_scores)
            .and_then(|machine| Cached::new(machine, shape.state, shape.kv_type))
        {
            Some(cached) => Ok(State::Cached(cached)),
            None => State::new(shape, &self.device, self.reference),
        }
    }

    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Act> {
        let mut numbers = vec![0.0; rows * width];
        fill(&mut numbers)?;
        Ok(Act::of(self.input([rows, width], numbers)?))
    }

    fn read(&self, x: &Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.by_candle();
        let numbers = x.rows()?.narrow(0, rows.start, rows.len())?.to_vec2::<f32>()?;
        numbers.iter().try_for_each(|row| each(row))
    }

    fn select(&self, x: &Act, rows: &[usize]) -> Result<Act> {
        let x = x.rows()?;
        if rows.iter().copied().eq(0..x.dim(0)?) {
            return Ok(Act::of(x.clone()));
        }
        self.by_candle();
        Ok(Act::of(x.index_select(&self.index(rows)?, 0)?))
    }

    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a CandleMatrix; N] + Sync,
        x: &Act,
    ) -> Result<[Act; N]> {
        ensure!(Run::are_all(runs, x.count()), "invariant: runs are all rows");
        let all = match self.products(runs, &by, x)? {
            Some(products) => products,
            None => (0..N).map(|at| self.composed(runs, |run| by(run)[at], x)).collect::<Result<Vec<_>>>()?,
        };
        all.try_into().ok().context("invariant: one result for each")
    }

    fn project_heads<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a CandleMatrix + Sync,
        transposed: bool,
        x: &Act,
    ) -> Result<Act> {
        self.by_candle();
        let x = x.rows()?;
        let width = x.dim(1)? / heads;
        let head = |index| -> Result<Tensor> {
            let (matrix, own) = (by(index), x.narrow(1, index * width, width)?.contiguous()?);
            if transposed { Ok(own.matmul(&matrix.float(self)?)?) } else { matrix.forward(self, &own) }
        };
        let heads = (0..heads).map(head).collect::<Result<Vec<_>>>()?;
        Ok(Act::of(Tensor::cat(&heads, 1)?))
    }

    fn norm(&self, norm: &NormOf<Self>, x: &Act) -> Result<Act> {
        if let Some(kernels) = &self.kernels {
            return Act::normed(&kernels.machine, norm, x);
        }
        let runs = by_head(x.rows()?, norm.width)?.contiguous()?;
        // If the weight spans several runs, the norm uses a weight of ones and the real one is
        // applied after.
        let weight_rows = norm.weight.dim(0)? / norm.width;
        let weight = norm.weight.narrow(0, 0, norm.width)?;
        let weight = if weight_rows == 1 { weight } else { weight.ones_like()? };
        let normed = match norm.kind {
            NormKind::Rms => candle_nn::ops::rms_norm(&runs, &weight, norm.epsilon)?,
            NormKind::Layer => candle_nn::ops::layer_norm(&runs, &weight, &weight.zeros_like()?, norm.epsilon)?,
            NormKind::Factors => runs.broadcast_mul(&weight)?,
        };
        let normed = if weight_rows == 1 {
            normed
        } else {
            normed.broadcast_mul(&norm.weight.reshape((weight_rows, norm.width))?)?
        };
        Ok(Act::of(match &norm.bias {
            Some(bias) => flat(&normed.broadcast_add(bias)?)?,
            None => flat(&normed)?,
        }))
    }

    fn map(&self, x: Act, map: Map<'_, Act>) -> Result<Act> {
        // Some maps are fused into the product or norm that they follow.
        let fused = match map {
            Map::Add(y, scale) => y.added_to(&x, scale)?,
            Map::Activate(activation) => x.activated(activation)?,
            Map::Gate(activation, up) => x.gated(activation, up)?,
            _ => None,
        };
        match (fused, &self.kernels) {
            (Some(act), _) => Ok(act),
            (None, Some(kernels)) => kernels.machine.map_rows(x.rows()?, map.with(Act::rows)?).map(Act::of),
            (None, None) => mapped(x.rows()?, &map).map(Act::of),
        }
    }

    fn part(&self, x: &Act, part: HeadPart) -> Result<Act> {
        self.by_candle();
        let heads = by_head(x.rows()?, part.width)?;
        Ok(Act::of(flat(&heads.narrow(D::Minus1, part.first, part.count)?.contiguous()?)?))
    }

    fn join(&self, a: &Act, b: &Act, heads: usize) -> Result<Act> {
        self.by_candle();
        let (a, b) = (a.rows()?, b.rows()?);
        let (first, second) = (a.dim(1)? / heads, b.dim(1)? / heads);
        Ok(Act::of(flat(&Tensor::cat(&[by_head(a, first)?, by_head(b, second)?], 2)?)?))
    }

    fn mix(&self, x: &Act, weights: &Act, parts: usize) -> Result<Act> {
        self.by_candle();
        let (x, weights) = (x.rows()?, weights.rows()?);
        let (width, sums) = (x.dim(1)? / parts, weights.dim(1)? / parts);
        let x = by_head(x, width)?.contiguous()?;
        let weights = weights.reshape((weights.dim(0)?, sums, parts))?.contiguous()?;
        Ok(Act::of(flat(&weights.matmul(&x)?)?))
    }

    fn stream_shares(&self, rule: &StreamShares<Self>, x: &Act) -> Result<Act> {
        self.by_candle();
        stream_shares::make(rule, x.rows()?).map(Act::of)
    }

    fn with_magnitude(&self, x: Act, of: &Act) -> Result<Act> {
        self.by_candle();
        let (x, of) = (x.rows()?, of.rows()?);
        let squares = x.sqr()?.mean_keepdim(1)?.maximum(f64::from(LEAST_SQUARE))?;
        let factors = (of.sqr()?.mean_keepdim(1)? / squares)?.sqrt()?;
        Ok(Act::of(x.broadcast_mul(&factors)?))
    }

    fn excess(&self, x: Act, deviations: f32) -> Result<Act> {
        self.by_candle();
        let x = x.rows()?;
        let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
        let cut = (centred.sqr()?.mean_keepdim(1)?.sqrt()? * f64::from(deviations))?;
        Ok(Act::of(centred.broadcast_sub(&cut)?.relu()?))
    }

    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Angles> {
        let shape = (angles.positions.len(), angles.half());
        let (mut cosines, mut sines) = (vec![0.0; shape.0 * shape.1], vec![0.0; shape.0 * shape.1]);
        angles.fill(&mut cosines, &mut sines);
        let shape = [shape.0, shape.1];
        Ok(Angles { cosines: self.input(shape, cosines)?, sines: self.input(shape, sines)?, layout: angles.layout })
    }

    fn rotate(&self, x: Act, part: HeadPart, angles: &Angles) -> Result<Act> {
        if let Some(kernels) = &self.kernels {
            return Ok(Act::rotated(&kernels.machine, x, part, angles));
        }
        rotated(x.rows()?, part, angles).map(Act::of)
    }

    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        qkv: [&Act; 3],
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        if let Some(kernels) = &self.kernels
            && attend.has_plain_scores()
            && let Some(mixed) = cached::attend(kernels, attend, qkv, sequences)?
        {
            return Ok(mixed);
        }
        self.by_candle();
        let [query, key, value] = qkv;
        let qkv = [query.rows()?, key.rows()?, value.rows()?];
        let mut chosen = attend.chosen.unwrap_or_default().iter();
        let mut own = sequences.sequences.iter().enumerate();
        let each = sequences.each(|span, state| {
            let entries = match (own.next(), &attend.entries) {
                (Some((index, sequence)), Some(entries)) => Some(entries.of(index, sequence.id)?),
                _ => None,
            };
            attention::attend(attend, qkv, (chosen.next().and_then(Option::as_ref), entries), span, state)
        });
        Ok(Act::of(Tensor::cat(&each?, 0)?))
    }

    fn choose_blocks(
        &self,
        choice: &BlockChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        self.by_candle();
        sequences.each(|span, state| attention::choose_blocks(choice, span, state))
    }

    fn compress(
        &self,
        compression: &Compression<Self>,
        values: &Act,
        gates: &Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        self.by_candle();
        let inputs = [values.rows()?, gates.rows()?];
        let each = sequences.each(|span, state| compression::compress(compression, inputs, span, state));
        Ok(Act::of(Tensor::cat(&each?, 0)?))
    }

    fn keep_entries(&self, rows: &Act, sequences: &mut LayerSequences<'_, Self>) -> Result<()> {
        self.by_candle();
        let rows = rows.rows()?;
        sequences.each(|span, state| {
            compression::entries_mut(state)?.append(&rows.narrow(0, span.first, span.tokens)?.contiguous()?)
        })?;
        Ok(())
    }

    fn choose_entries(
        &self,
        choice: &EntryChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        self.by_candle();
        sequences.each(|span, state| compression::choose(choice, span, state))
    }

    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Act,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        self.by_candle();
        let x = x.rows()?;
        let each = sequences.each(|span, state| recurrent::convolve(convolution, x, span, state));
        Ok(Act::of(Tensor::cat(&each?, 0)?))
    }

    fn recur(
        &self,
        recurrence: &Recurrence<Self>,
        inputs: RecurrenceInputs<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Act> {
        self.by_candle();
        let each = sequences.each(|span, state| recurrent::recur(recurrence, &inputs, span, state));
        Ok(Act::of(Tensor::cat(&each?, 0)?))
    }

    fn selects(&self) -> bool {
        self.kernels.is_some()
    }

    fn best(&self, logits: &Act, wanted: &[(usize, &Selection)]) -> Result<Vec<Best>> {
        let Kernels { machine, .. } = self.kernels.as_ref().context("invariant: a backend that selects has kernels")?;
        let wanted: Vec<_> = wanted.iter().map(|(row, selection)| (*row, selection.view())).collect();
        machine.best(logits.rows()?, &wanted)
    }

    fn experts(&self, experts: &ExpertsOf<'_, Self>) -> Result<Option<Experts>> {
        match &self.kernels {
            Some(kernels) => Experts::new(kernels, experts, &self.device),
            None => Ok(None),
        }
    }

    fn scatter(&self, x: Act, y: &Act, rows: &[usize], weights: &[f32]) -> Result<Act> {
        self.by_candle();
        let weights = Tensor::from_slice(weights, (weights.len(), 1), &self.device)?;
        let shares = y.rows()?.broadcast_mul(&weights.to_dtype(DType::F32)?)?;
        Ok(Act::of(x.rows()?.index_add(&self.index(rows)?, &shares, 0)?))
    }
}
