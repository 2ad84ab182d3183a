//! Products of rows and matrices, with our kernels or with candle's operations.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;
use device::{ExpertRows, MOST_PRODUCTS};

use super::Candle;
use super::act::Act;
use super::act::matrix::{CandleMatrix, DeviceMatrix};
use crate::backend::Run;

impl Candle {
    /// Multiplies with our kernels. Returns `None` if there are none for these matrices, or if
    /// adapters add to the products.
    pub(super) fn products<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: &impl Fn(usize) -> [&'a CandleMatrix; N],
        x: &Act,
    ) -> Result<Option<Vec<Act>>> {
        let Some(kernels) = &self.kernels else { return Ok(None) };
        let of_run = |run: &Run| -> Option<Vec<Arc<DeviceMatrix>>> {
            by(run.by).iter().map(|matrix| matrix.of_device().cloned()).collect()
        };
        let Some(sets) = runs.iter().map(of_run).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let rows = |(at, run): (usize, &Run)| ExpertRows { expert: at, first: run.rows.start, count: run.rows.len() };
        let rows = (runs.len() > 1).then(|| runs.iter().enumerate().map(rows).collect::<Vec<_>>());
        let like = |at: usize, other: usize| sets.iter().all(|set| set[at].weight.is_like(&sets[0][other].weight));
        if !(0..N).all(|at| like(at, at)) {
            return Ok(None);
        }
        // Matrices of different types need one launch each.
        let together = if (0..N).all(|at| like(at, 0)) { MOST_PRODUCTS } else { 1 };
        let mut all = Vec::with_capacity(N);
        for first in (0..N).step_by(together) {
            let own = first..N.min(first + together);
            let sets = sets.iter().map(|set| set[own.clone()].to_vec()).collect();
            all.extend(Act::products(kernels, sets, rows.clone(), x)?);
        }
        Ok(Some(all))
    }

    /// Multiplies with candle's operations.
    pub(super) fn composed<'a>(&'a self, runs: &[Run], by: impl Fn(usize) -> &'a CandleMatrix, x: &Act) -> Result<Act> {
        self.by_candle();
        let x = x.rows()?;
        if let [run] = runs {
            return by(run.by).forward(self, x).map(Act::of);
        }
        let own = |run: &Run| x.narrow(0, run.rows.start, run.rows.len())?.contiguous();
        let all = runs.iter().map(|run| by(run.by).forward(self, &own(run)?)).collect::<Result<Vec<_>>>()?;
        Ok(Act::of(Tensor::cat(&all, 0)?))
    }
}
