//! Pipeline of several backends, each of which computes some of the layers. Activations pass from
//! one stage to the next through host memory.
//!
//! The stage of a layer owns its weights, its states, and all rows that are computed within it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::candle::Candle;
use super::cpu::Cpu;
use crate::backend::{
    AnglesOf, Attend, Backend, Best, Convolution, DeltaInputs, DeltaRule, ExpertsOf, HeadPart, LowRank, Map,
    MatrixSource, NormOf, Run, Selection, Sequence, Shift, State, StateShape,
};

/// The backends, and the layers that each of them computes.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    stages: Arc<[Stage]>,
    /// Index of the stage of each layer; the last entry is the stage of the final norm and head.
    layers: Arc<[usize]>,
    /// Index of the stage that this handle computes with.
    here: usize,
}

/// One backend of the pipeline.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    Cpu(Cpu),
    Device(Box<Candle>),
}

/// A value that belongs to one of the two kinds of backend.
#[derive(Debug)]
pub(crate) enum Of<C, D> {
    Cpu(C),
    Device(D),
}

/// Clones share the underlying numbers, as the clones of each backend do.
impl<C: Clone, D: Clone> Clone for Of<C, D> {
    fn clone(&self) -> Self {
        match self {
            Self::Cpu(own) => Self::Cpu(own.clone()),
            Self::Device(own) => Self::Device(own.clone()),
        }
    }
}

/// Rows of activations, and the index of the stage that owns them.
#[derive(Debug)]
pub(crate) struct Act {
    stage: usize,
    rows: Of<<Cpu as Backend>::Act, <Candle as Backend>::Act>,
}

type Matrix = Of<<Cpu as Backend>::Matrix, <Candle as Backend>::Matrix>;
type Vector = Of<<Cpu as Backend>::Vector, <Candle as Backend>::Vector>;
type Angles = Of<<Cpu as Backend>::Angles, <Candle as Backend>::Angles>;
type Experts = Of<<Cpu as Backend>::Experts, <Candle as Backend>::Experts>;
type StageState = Of<<Cpu as Backend>::State, <Candle as Backend>::State>;

impl Pipeline {
    /// Creates a pipeline. `layers` has the stage index of each layer and, last, of what follows
    /// the layers.
    pub(crate) fn new(stages: Vec<Stage>, layers: Vec<usize>) -> Self {
        let here = layers.first().copied().unwrap_or_default();
        Self { stages: stages.into(), layers: layers.into(), here }
    }

    fn act(&self, rows: Of<<Cpu as Backend>::Act, <Candle as Backend>::Act>) -> Act {
        Act { stage: self.here, rows }
    }
}

/// Conversions between [`Of`] and values of the CPU backend.
mod of_cpu {
    use super::{Of, Result, elsewhere};

    pub(super) fn get<C, D>(of: &Of<C, D>) -> Result<&C> {
        if let Of::Cpu(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn get_mut<C, D>(of: &mut Of<C, D>) -> Result<&mut C> {
        if let Of::Cpu(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn take<C, D>(of: Of<C, D>) -> Result<C> {
        if let Of::Cpu(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn made<C, D>(own: C) -> Of<C, D> {
        Of::Cpu(own)
    }
}

/// Conversions between [`Of`] and values of the device backend.
mod of_device {
    use super::{Of, Result, elsewhere};

    pub(super) fn get<C, D>(of: &Of<C, D>) -> Result<&D> {
        if let Of::Device(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn get_mut<C, D>(of: &mut Of<C, D>) -> Result<&mut D> {
        if let Of::Device(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn take<C, D>(of: Of<C, D>) -> Result<D> {
        if let Of::Device(own) = of { Ok(own) } else { Err(elsewhere()) }
    }

    pub(super) fn made<C, D>(own: D) -> Of<C, D> {
        Of::Device(own)
    }
}

fn elsewhere() -> anyhow::Error {
    anyhow::anyhow!("invariant: a layer's numbers are where it is computed")
}

/// Evaluates `$body` with the current stage's backend as `$own`. `$of` lists the conversion
/// functions of that kind of backend that the body uses.
macro_rules! by_stage {
    ($pipeline:expr, $own:ident, [$($of:ident),*] => $body:expr) => {
        match &$pipeline.stages[$pipeline.here] {
            Stage::Cpu($own) => {
                use of_cpu::{$($of),*};
                $body
            }
            Stage::Device($own) => {
                use of_device::{$($of),*};
                let $own = &**$own;
                $body
            }
        }
    };
}

/// Returns the sequences with only the state of this layer, as the stage's backend sees them. In
/// each of them, it is the state of layer 0.
fn own_sequences<'s, B: Backend>(
    sequences: &'s mut [Sequence<'_, Pipeline>],
    layer: usize,
    get_mut: fn(&mut StageState) -> Result<&mut B::State>,
) -> Result<Vec<Sequence<'s, B>>> {
    let own = |sequence: &'s mut Sequence<'_, Pipeline>| -> Result<Sequence<'s, B>> {
        let Sequence { states, span, long, second } = sequence;
        let states = std::slice::from_mut(get_mut(&mut states[layer])?);
        Ok(Sequence { states, span: *span, long: *long, second: *second })
    };
    sequences.iter_mut().map(own).collect()
}

impl Backend for Pipeline {
    type Act = Act;
    type Matrix = Matrix;
    type Vector = Vector;
    type State = StageState;
    type Angles = Vec<Angles>;
    type Experts = Experts;
    type Recordings = ();

    fn device(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for stage in &*self.layers {
            let name = match &self.stages[*stage] {
                Stage::Cpu(own) => own.device(),
                Stage::Device(own) => own.device(),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join("+")
    }

    fn chunk(&self, heads: usize, length: usize, tokens: usize) -> usize {
        let of_stage = |stage: &Stage| match stage {
            Stage::Cpu(own) => own.chunk(heads, length, tokens),
            Stage::Device(own) => own.chunk(heads, length, tokens),
        };
        self.stages.iter().map(of_stage).min().unwrap_or(tokens)
    }

    fn of_layer(&self, layer: usize) -> Self {
        let last = self.layers.last().copied().unwrap_or_default();
        Self { here: self.layers.get(layer).copied().unwrap_or(last), ..self.clone() }
    }

    fn received(&self, x: Act) -> Result<Act> {
        if x.stage == self.here {
            return Ok(x);
        }
        let before = Self { here: x.stage, ..self.clone() };
        let (count, mut numbers) = (before.count(&x), Vec::new());
        before.read(&x, 0..count, &mut |row| {
            numbers.extend_from_slice(row);
            Ok(())
        })?;
        self.rows(count, numbers.len() / count.max(1), |rows| {
            rows.copy_from_slice(&numbers);
            Ok(())
        })
    }

    fn matrix(&self, source: MatrixSource<Self>) -> Result<Matrix> {
        let MatrixSource { weight, bias, adapters } = source;
        by_stage!(self, own, [take, made] => {
            let factors = |factors: LowRank<Self>| {
                Ok(LowRank { down: take(factors.down)?, up: take(factors.up)?, scale: factors.scale })
            };
            let adapters = adapters.into_iter().map(factors).collect::<Result<_>>()?;
            Ok(made(own.matrix(MatrixSource { weight, bias, adapters })?))
        })
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Vector> {
        by_stage!(self, own, [made] => Ok(made(own.vector(numbers)?)))
    }

    fn state(&self, shape: StateShape) -> Result<StageState> {
        by_stage!(self, own, [made] => Ok(made(own.state(shape)?)))
    }

    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Act> {
        by_stage!(self, own, [made] => Ok(self.act(made(own.rows(rows, width, fill)?))))
    }

    fn read(&self, x: &Act, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        by_stage!(self, own, [get] => own.read(get(&x.rows)?, rows, each))
    }

    fn count(&self, x: &Act) -> usize {
        by_stage!(self, own, [get] => get(&x.rows).map_or(0, |x| own.count(x)))
    }

    fn select(&self, x: &Act, rows: &[usize]) -> Result<Act> {
        by_stage!(self, own, [get, made] => Ok(self.act(made(own.select(get(&x.rows)?, rows)?))))
    }

    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Matrix; N] + Sync,
        x: &Act,
    ) -> Result<[Act; N]> {
        by_stage!(self, own, [get, made] => {
            let by = |run| by(run).map(|matrix| get(matrix).expect("invariant: a layer is in one stage"));
            let all = own.project_runs(runs, by, get(&x.rows)?)?;
            Ok(all.map(|y| self.act(made(y))))
        })
    }

    fn project_heads<'a>(
        &'a self,
        heads: usize,
        by: impl Fn(usize) -> &'a Matrix + Sync,
        transposed: bool,
        x: &Act,
    ) -> Result<Act> {
        by_stage!(self, own, [get, made] => {
            let by = |head| get(by(head)).expect("invariant: a layer is in one stage");
            Ok(self.act(made(own.project_heads(heads, by, transposed, get(&x.rows)?)?)))
        })
    }

    fn norm(&self, norm: &NormOf<Self>, x: &Act) -> Result<Act> {
        by_stage!(self, own, [get, made] => {
            let weight = get(&norm.weight)?.clone();
            let bias = norm.bias.as_ref().map(|bias| get(bias).cloned()).transpose()?;
            let NormOf { kind, width, epsilon, .. } = *norm;
            Ok(self.act(made(own.norm(&NormOf { kind, width, weight, bias, epsilon }, get(&x.rows)?)?)))
        })
    }

    fn map(&self, x: Act, map: Map<'_, Act>) -> Result<Act> {
        by_stage!(self, own, [get, take, made] => {
            let map = map.with(|y| get(&y.rows))?;
            Ok(self.act(made(own.map(take(x.rows)?, map)?)))
        })
    }

    fn part(&self, x: &Act, part: HeadPart) -> Result<Act> {
        by_stage!(self, own, [get, made] => Ok(self.act(made(own.part(get(&x.rows)?, part)?))))
    }

    fn join(&self, a: &Act, b: &Act, heads: usize) -> Result<Act> {
        by_stage!(self, own, [get, made] => {
            Ok(self.act(made(own.join(get(&a.rows)?, get(&b.rows)?, heads)?)))
        })
    }

    /// Returns the angles for each stage.
    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Vec<Angles>> {
        let of_stage = |stage: &Stage| -> Result<Angles> {
            Ok(match stage {
                Stage::Cpu(own) => Of::Cpu(own.angles(angles)?),
                Stage::Device(own) => Of::Device(own.angles(angles)?),
            })
        };
        self.stages.iter().map(of_stage).collect()
    }

    fn rotate(&self, x: Act, part: HeadPart, angles: &Vec<Angles>) -> Result<Act> {
        let angles = angles.get(self.here).context("invariant: there are angles for each stage")?;
        by_stage!(self, own, [get, take, made] => {
            Ok(self.act(made(own.rotate(take(x.rows)?, part, get(angles)?)?)))
        })
    }

    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        [query, key, value]: [&Act; 3],
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Act> {
        let Attend { heads, kv_heads, key_dim, value_dim, values, scale, soft_cap, window, causal, sinks } = *attend;
        by_stage!(self, own, [get, get_mut, made] => {
            let sinks = sinks.map(get).transpose()?;
            let attend = Attend { heads, kv_heads, key_dim, value_dim, values, scale, soft_cap, window, causal, sinks };
            let qkv = [get(&query.rows)?, get(&key.rows)?, get(&value.rows)?];
            let mut sequences = own_sequences(sequences, layer, get_mut)?;
            Ok(self.act(made(own.attend(&attend, qkv, &mut sequences, 0)?)))
        })
    }

    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Act,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Act> {
        let Convolution { weight, bias, kernel, at } = convolution;
        by_stage!(self, own, [get, get_mut, made] => {
            let bias = bias.as_ref().map(|bias| get(bias).cloned()).transpose()?;
            let convolution = Convolution { weight: get(weight)?.clone(), bias, kernel: *kernel, at: *at };
            let mut sequences = own_sequences(sequences, layer, get_mut)?;
            Ok(self.act(made(own.convolve(&convolution, get(&x.rows)?, &mut sequences, 0)?)))
        })
    }

    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        inputs: DeltaInputs<'_, Self>,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Act> {
        let DeltaRule { key_heads, value_heads, key_dim, value_dim, decay_rate, decay_bias } = rule;
        let DeltaInputs { query, key, value, beta, decay } = inputs;
        by_stage!(self, own, [get, get_mut, made] => {
            let rule = DeltaRule {
                key_heads: *key_heads,
                value_heads: *value_heads,
                key_dim: *key_dim,
                value_dim: *value_dim,
                decay_rate: get(decay_rate)?.clone(),
                decay_bias: get(decay_bias)?.clone(),
            };
            let inputs = DeltaInputs {
                query: get(&query.rows)?,
                key: get(&key.rows)?,
                value: get(&value.rows)?,
                beta: get(&beta.rows)?,
                decay: get(&decay.rows)?,
            };
            let mut sequences = own_sequences(sequences, layer, get_mut)?;
            Ok(self.act(made(own.delta_rule(&rule, inputs, &mut sequences, 0)?)))
        })
    }

    fn selects(&self) -> bool {
        match &self.stages[self.here] {
            Stage::Cpu(own) => own.selects(),
            Stage::Device(own) => own.selects(),
        }
    }

    fn best(&self, logits: &Act, wanted: &[(usize, &Selection)]) -> Result<Vec<Best>> {
        by_stage!(self, own, [get] => own.best(get(&logits.rows)?, wanted))
    }

    fn experts(&self, experts: &ExpertsOf<'_, Self>) -> Result<Option<Experts>> {
        let ExpertsOf { rule, networks, activation } = experts;
        by_stage!(self, own, [get, made] => {
            let mut own_networks = Vec::with_capacity(networks.len());
            for [gate, up, down] in networks {
                own_networks.push([get(*gate)?, get(*up)?, get(*down)?]);
            }
            let experts = ExpertsOf { rule, networks: own_networks, activation: *activation };
            Ok(own.experts(&experts)?.map(made))
        })
    }

    fn route(&self, experts: &Experts, logits: &Act, x: &Act, sum: Option<Act>) -> Result<Act> {
        by_stage!(self, own, [get, take, made] => {
            let sum = sum.map(|sum| take(sum.rows)).transpose()?;
            Ok(self.act(made(own.route(get(experts)?, get(&logits.rows)?, get(&x.rows)?, sum)?)))
        })
    }

    fn scatter(&self, x: Act, y: &Act, rows: &[usize], weights: &[f32]) -> Result<Act> {
        by_stage!(self, own, [get, take, made] => {
            Ok(self.act(made(own.scatter(take(x.rows)?, get(&y.rows)?, rows, weights)?)))
        })
    }
}

impl<C: State, D: State> State for Of<C, D> {
    fn nearest(&self, length: usize) -> usize {
        match self {
            Self::Cpu(own) => own.nearest(length),
            Self::Device(own) => own.nearest(length),
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Cpu(own) => own.truncate(length),
            Self::Device(own) => own.truncate(length),
        }
    }

    fn checkpoint(&mut self) {
        match self {
            Self::Cpu(own) => own.checkpoint(),
            Self::Device(own) => own.checkpoint(),
        }
    }

    fn can_shift(&self, shift: &Shift<'_>) -> bool {
        match self {
            Self::Cpu(own) => own.can_shift(shift),
            Self::Device(own) => own.can_shift(shift),
        }
    }

    fn shift(&mut self, shift: &Shift<'_>) -> Result<()> {
        match self {
            Self::Cpu(own) => own.shift(shift),
            Self::Device(own) => own.shift(shift),
        }
    }

    fn share(&self, length: usize) -> Option<Self> {
        Some(match self {
            Self::Cpu(own) => Self::Cpu(own.share(length)?),
            Self::Device(own) => Self::Device(own.share(length)?),
        })
    }
}
