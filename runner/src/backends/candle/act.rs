//! Rows of activations, some of which are computed lazily, when their use is known. A norm is fused
//! with the product that consumes it, and a product with the operation that follows it.
//!
//! So a layer takes a few kernel launches, and the decoder does not need to know about fusion. If
//! the device has none of our kernels, everything is computed at once by candle's operations.

pub(super) mod composed;
pub(super) mod experts;
pub(super) mod matrix;

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use architectures::{Activation, HeadLayout, NormKind};
use candle_core::Tensor;
use device::{
    ExpertRows, GpuRuntime, HeadRows, Made, Norm, Product, ProductInput, Purpose, Rotary, Rounded, WeightSet,
};

use super::NormOf;
use super::{Angles, Candle, Kernels};
use crate::backend::{Activations, HeadPart};
use experts::Mixed;
use matrix::DeviceMatrix;

/// Rows of activations, `[tokens, width]`.
#[derive(Debug)]
pub(crate) struct Act {
    later: Later,
    /// The plain rows, once they are computed.
    rows: OnceLock<Tensor>,
    /// The rows rounded for products, once they are computed.
    rounded: OnceLock<Arc<Rounded>>,
}

/// The computation that is still pending.
#[derive(Debug)]
enum Later {
    Nothing,
    Normed(Normed),
    Product(Arc<Products>, usize),
    Rotated(Box<Rotated>),
    Mixed(Box<Mixed>),
    Summed(Arc<Summed>),
}

/// A norm that is added to a residual. The sum may be computed together with a norm of the sum.
#[derive(Debug)]
struct Summed {
    normed: Normed,
    residual: Tensor,
    scale: f32,
    sum: OnceLock<Tensor>,
}

/// Input of a norm.
#[derive(Clone, Debug)]
enum Base {
    Rows(Tensor),
    Summed(Arc<Summed>),
}

/// Heads, to a part of which RoPE is applied.
#[derive(Debug)]
struct Rotated {
    machine: GpuRuntime,
    base: Act,
    part: HeadPart,
    angles: Angles,
}

/// Query or key heads before attention, with the norm and the rotary embedding that our kernels
/// still have to apply.
pub(super) struct HeadsOf<'a> {
    x: &'a Tensor,
    norm: Option<(&'a Tensor, f32)>,
    rotary: Option<Rotary<'a>>,
}

impl HeadsOf<'_> {
    pub(super) fn rows(&self) -> HeadRows<'_> {
        HeadRows { x: self.x, norm: self.norm, rotary: self.rotary }
    }
}

#[derive(Clone, Debug)]
struct Normed {
    machine: GpuRuntime,
    x: Base,
    kind: NormKind,
    width: usize,
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f32,
}

/// Products of the same rows with matrices of the same layout, not computed yet.
#[derive(Debug)]
pub(super) struct Products {
    kernels: Kernels,
    /// The matrices of each expert; a single set if there are no experts.
    sets: Vec<Vec<Arc<DeviceMatrix>>>,
    /// The rows of each expert; `None` if the only set applies to all rows.
    runs: Option<Vec<ExpertRows>>,
    x: Rows,
    tokens: usize,
    results: OnceLock<Vec<Tensor>>,
}

/// Input of products.
#[derive(Debug)]
enum Rows {
    Float(Tensor),
    Rounded(Arc<Rounded>),
}

impl Activations for Act {
    fn count(&self) -> usize {
        match &self.later {
            Later::Product(products, _) => products.tokens,
            Later::Normed(normed) => normed.x.dims()[0],
            Later::Summed(summed) => summed.residual.dims()[0],
            Later::Rotated(rotated) => rotated.base.count(),
            Later::Mixed(mixed) => mixed.count(),
            Later::Nothing => self.rows.get().map_or(0, |rows| rows.dims()[0]),
        }
    }
}

impl Act {
    pub(super) fn of(rows: Tensor) -> Self {
        Self { later: Later::Nothing, rows: OnceLock::from(rows), rounded: OnceLock::new() }
    }

    /// Creates activations from rows that are already rounded as well.
    pub(super) fn with_rounded(rows: Tensor, rounded: Option<Rounded>) -> Self {
        let act = Self::of(rows);
        if let Some(rounded) = rounded {
            let _ = act.rounded.set(Arc::new(rounded));
        }
        act
    }

    /// Creates activations from the only result of a launch.
    pub(super) fn made(made: Made) -> Result<Self> {
        let Made { mut rows, rounded } = made;
        let rows = rows.pop().context("invariant: a product has a result")?;
        Ok(Self::with_rounded(rows, rounded))
    }

    fn later(later: Later) -> Self {
        Self { later, rows: OnceLock::new(), rounded: OnceLock::new() }
    }

    /// Returns a norm of `x`, computed when it is needed.
    pub(super) fn normed(machine: &GpuRuntime, norm: &NormOf<Candle>, x: &Self) -> Result<Self> {
        Ok(Self::later(Later::Normed(Normed {
            machine: machine.clone(),
            x: match &x.later {
                Later::Summed(summed) if summed.sum.get().is_none() => Base::Summed(summed.clone()),
                _ => Base::Rows(x.rows()?.clone()),
            },
            kind: norm.kind,
            width: norm.width,
            weight: norm.weight.clone(),
            bias: norm.bias.clone(),
            epsilon: norm.epsilon,
        })))
    }

    /// Returns heads to a part of which RoPE is applied when they are needed.
    pub(super) fn rotated(machine: &GpuRuntime, base: Self, part: HeadPart, angles: &Angles) -> Self {
        let machine = machine.clone();
        Self::later(Later::Rotated(Box::new(Rotated { machine, base, part, angles: angles.clone() })))
    }

    /// Returns heads of this width as attention takes them. A norm or rotary embedding that is
    /// still pending is left to the attention kernel.
    pub(super) fn heads(&self, width: usize) -> Result<HeadsOf<'_>> {
        if self.rows.get().is_none() {
            match &self.later {
                Later::Rotated(rotated) if rotated.part.width == width => {
                    let Angles { cosines, sines, layout } = &rotated.angles;
                    let is_interleaved = *layout == HeadLayout::Interleaved;
                    let rotary = Rotary { cosines, sines, is_interleaved, first: rotated.part.first };
                    let base = rotated.base.heads(width)?;
                    // The kernel rotates once.
                    let base = if base.rotary.is_some() {
                        HeadsOf { x: rotated.base.rows()?, norm: None, rotary: None }
                    } else {
                        base
                    };
                    return Ok(HeadsOf { rotary: Some(rotary), ..base });
                }
                Later::Normed(own) if own.width == width && own.kind == NormKind::Rms && own.bias.is_none() => {
                    return Ok(HeadsOf { x: own.x.rows()?, norm: Some((&own.weight, own.epsilon)), rotary: None });
                }
                _ => {}
            }
        }
        Ok(HeadsOf { x: self.rows()?, norm: None, rotary: None })
    }

    /// Returns the combined output of experts, computed when it is needed.
    pub(super) fn mixed(mixed: Mixed) -> Self {
        Self::later(Later::Mixed(Box::new(mixed)))
    }

    /// Passes the rows to `take` in the form that the weights require: rounded or float32.
    pub(super) fn input<T>(
        &self,
        kernels: &Kernels,
        rounds: bool,
        take: impl FnOnce(ProductInput<'_>) -> Result<T>,
    ) -> Result<T> {
        if rounds {
            take(ProductInput::Rounded(&*self.rounded(&kernels.machine)?))
        } else {
            take(ProductInput::Rows(self.rows()?))
        }
    }

    /// Returns the products of `x`, one for each matrix of a set, computed when they are needed.
    pub(super) fn products(
        kernels: &Kernels,
        sets: Vec<Vec<Arc<DeviceMatrix>>>,
        runs: Option<Vec<ExpertRows>>,
        x: &Self,
    ) -> Result<Vec<Self>> {
        let count = sets.first().map_or(0, Vec::len);
        let rounds = sets.iter().flatten().any(|matrix| matrix.weight.rounds());
        let products = Arc::new(Products {
            kernels: kernels.clone(),
            x: if rounds { Rows::Rounded(x.rounded(&kernels.machine)?) } else { Rows::Float(x.rows()?.clone()) },
            tokens: x.count(),
            sets,
            runs,
            results: OnceLock::new(),
        });
        Ok((0..count).map(|at| Self::later(Later::Product(products.clone(), at))).collect())
    }

    /// Returns the plain rows; computes them first if necessary.
    pub(super) fn rows(&self) -> Result<&Tensor> {
        if self.rows.get().is_none() {
            let rows = match &self.later {
                Later::Nothing => None,
                Later::Normed(normed) => Some(normed.rows()?),
                Later::Summed(summed) => Some(summed.rows()?.clone()),
                Later::Product(products, at) => products.written()?.get(*at).cloned(),
                Later::Mixed(mixed) => Some(mixed.rows(None)?),
                Later::Rotated(rotated) => {
                    rotated.machine.cannot_be_recorded();
                    Some(composed::rotated(rotated.base.rows()?, rotated.part, &rotated.angles)?)
                }
            };
            let _ = self.rows.set(rows.context("invariant: rows are there or can be computed")?);
        }
        self.rows.get().context("invariant: they have just been put there")
    }

    /// Returns the rows rounded for products. A pending norm is computed in the same launch.
    fn rounded(&self, machine: &GpuRuntime) -> Result<Arc<Rounded>> {
        if self.rounded.get().is_none() {
            let rounded = match &self.later {
                Later::Normed(normed) if self.rows.get().is_none() && normed.is_of_whole_rows() => normed.rounded()?,
                _ => machine.rounded(None, self.rows()?)?,
            };
            let _ = self.rounded.set(Arc::new(rounded));
        }
        self.rounded.get().cloned().context("invariant: they have just been put there")
    }

    /// Returns `residual + scale · self`, fused with the pending computation of `self`; `None` if
    /// nothing is pending.
    pub(super) fn added_to(&self, residual: &Self, scale: f32) -> Result<Option<Self>> {
        if let (Later::Mixed(mixed), None) = (&self.later, self.rows.get()) {
            return Ok(Some(Self::of(mixed.rows(Some((residual.rows()?, scale)))?)));
        }
        if let (Later::Normed(normed), None) = (&self.later, self.rows.get()) {
            let residual = residual.rows()?.clone();
            if normed.is_of_whole_rows() {
                let summed = Summed { normed: normed.clone(), residual, scale, sum: OnceLock::new() };
                return Ok(Some(Self::later(Later::Summed(Arc::new(summed)))));
            }
            let sum = normed.machine.norm(normed.norm(), normed.x.rows()?, Some((&residual, scale)))?;
            return Ok(Some(Self::of(sum)));
        }
        let Some(products) = self.lone_product() else { return Ok(None) };
        products.one(Purpose::Add(residual.rows()?, scale)).map(Some)
    }

    /// Returns `activation(self)`, fused with the pending product; `None` if no product is pending.
    pub(super) fn activated(&self, activation: Activation) -> Result<Option<Self>> {
        let Some(products) = self.lone_product() else { return Ok(None) };
        products.one(Purpose::Activate(activation)).map(Some)
    }

    /// Returns `activation(self) · up` if both are pending products of the same launch; else
    /// `None`.
    pub(super) fn gated(&self, activation: Activation, up: &Self) -> Result<Option<Self>> {
        match (&self.later, &up.later) {
            (Later::Product(own, 0), Later::Product(other, 1))
                if Arc::ptr_eq(own, other) && own.is_open() && own.sets[0].len() == 2 =>
            {
                own.one(Purpose::Gate(activation)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the pending product if it is the only one of its launch.
    fn lone_product(&self) -> Option<&Products> {
        match &self.later {
            Later::Product(products, _) if products.is_open() && products.sets[0].len() == 1 => Some(products),
            _ => None,
        }
    }
}

impl Normed {
    fn norm(&self) -> Norm<'_> {
        let Self { kind, width, epsilon, .. } = *self;
        Norm { kind, width, weight: &self.weight, bias: self.bias.as_ref(), epsilon }
    }

    fn is_of_whole_rows(&self) -> bool {
        self.x.dims()[1] == self.width
    }

    fn rows(&self) -> Result<Tensor> {
        match self.with_sum(false)? {
            Some(device::NormOutput::Rows(rows)) => Ok(rows),
            _ => self.machine.norm(self.norm(), self.x.rows()?, None),
        }
    }

    fn rounded(&self) -> Result<Rounded> {
        match self.with_sum(true)? {
            Some(device::NormOutput::Rounded(rounded)) => Ok(rounded),
            _ => self.machine.rounded(Some(self.norm()), self.x.rows()?),
        }
    }

    /// Computes this norm in one launch with the sum that it normalizes. Returns `None` if the
    /// input is not a pending sum.
    fn with_sum(&self, is_rounded: bool) -> Result<Option<device::NormOutput>> {
        let Base::Summed(summed) = &self.x else { return Ok(None) };
        let Summed { normed, residual, scale, sum } = &**summed;
        if sum.get().is_some() || !self.norm().follows(residual.dims()[1]) {
            return Ok(None);
        }
        let (norm, x) = (normed.norm(), normed.x.rows()?);
        let (made, own) = self.machine.norm_twice(norm, x, (residual, *scale), self.norm(), is_rounded)?;
        let _ = sum.set(made);
        Ok(Some(own))
    }
}

impl Summed {
    fn rows(&self) -> Result<&Tensor> {
        if self.sum.get().is_none() {
            let Self { normed, residual, scale, .. } = self;
            let _ = self.sum.set(normed.machine.norm(normed.norm(), normed.x.rows()?, Some((residual, *scale)))?);
        }
        self.sum.get().context("invariant: it has just been put there")
    }
}

impl Base {
    fn rows(&self) -> Result<&Tensor> {
        match self {
            Self::Rows(rows) => Ok(rows),
            Self::Summed(summed) => summed.rows(),
        }
    }

    fn dims(&self) -> &[usize] {
        match self {
            Self::Rows(rows) => rows.dims(),
            Self::Summed(summed) => summed.residual.dims(),
        }
    }
}

impl Products {
    /// Returns whether the products are still pending.
    fn is_open(&self) -> bool {
        self.results.get().is_none()
    }

    /// Returns all products as plain rows.
    fn written(&self) -> Result<&Vec<Tensor>> {
        if self.results.get().is_none() {
            let _ = self.results.set(self.launch(Purpose::Write)?.rows);
        }
        self.results.get().context("invariant: they have just been put there")
    }

    fn one(&self, purpose: Purpose<'_>) -> Result<Act> {
        Act::made(self.launch(purpose)?)
    }

    fn launch(&self, purpose: Purpose<'_>) -> Result<Made> {
        let x = match &self.x {
            Rows::Float(rows) => ProductInput::Rows(rows),
            Rows::Rounded(rows) => ProductInput::Rounded(rows),
        };
        let sets: Vec<WeightSet<'_>> =
            self.sets.iter().map(|set| set.iter().map(|own| own.with_bias()).collect()).collect();
        let Kernels { machine, is_exact, .. } = &self.kernels;
        machine.product(Product { sets: &sets, runs: self.runs.as_deref(), purpose, is_exact: *is_exact }, x)
    }
}
