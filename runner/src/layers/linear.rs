//! Projections whose inputs and outputs some models clamp.

use anyhow::{Result, ensure};

use super::Loader;
use crate::backend::{Backend, HeadPart, Map};
use crate::weights::HeadRows;

/// A projection.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend> {
    matrix: B::Matrix,
    /// Number of elements of a row that it takes.
    inputs: usize,
    clamps: Option<Clamps>,
}

/// Bounds before and behind a projection.
#[derive(Clone, Copy, Debug)]
struct Clamps {
    input: [f32; 2],
    output: [f32; 2],
}

impl<B: Backend> Linear<B> {
    pub(super) fn load(
        loader: &Loader<'_, B>,
        own: &architectures::Projection,
        [inputs, outputs]: [usize; 2],
        rows: Option<HeadRows>,
    ) -> Result<Self> {
        let matrix = loader.weights.matrix(loader.backend, own, inputs, outputs, rows)?;
        let bounds = |tensors: &[architectures::Tensor; 2]| -> Result<[f32; 2]> {
            let mut bounds = [0.0; 2];
            for (bound, tensor) in bounds.iter_mut().zip(tensors) {
                *bound = loader.weights.numbers(tensor, &[1])?.first().copied().unwrap_or_default();
            }
            let [low, high] = bounds;
            ensure!(low <= high, "`{}` is {low}, more than the upper bound {high}", tensors[0].name);
            Ok(bounds)
        };
        let clamps = own
            .clamps
            .as_ref()
            .map(|own| -> Result<Clamps> { Ok(Clamps { input: bounds(&own.input)?, output: bounds(&own.output)? }) });
        Ok(Self { matrix, inputs, clamps: clamps.transpose()? })
    }

    /// Computes several projections of the same rows; without bounds, all at once.
    pub(super) fn project<const N: usize>(backend: &B, all: [&Self; N], x: &B::Act) -> Result<[B::Act; N]> {
        if all.iter().all(|own| own.clamps.is_none()) {
            return backend.project(all.map(|own| &own.matrix), x);
        }
        let made = all.iter().map(|own| own.project_alone(backend, x)).collect::<Result<Vec<_>>>()?;
        let count = made.len();
        made.try_into().map_err(|_| anyhow::anyhow!("invariant: {count} projections have as many results"))
    }

    fn project_alone(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let Some(Clamps { input, output }) = self.clamps else {
            let [made] = backend.project([&self.matrix], x)?;
            return Ok(made);
        };
        let clamp = |[low, high]: [f32; 2]| Map::Clamp { low, high };
        // A copy: other projections take the rows as they are.
        let rows = backend.part(x, HeadPart { width: self.inputs, first: 0, count: self.inputs })?;
        let [made] = backend.project([&self.matrix], &backend.map(rows, clamp(input))?)?;
        backend.map(made, clamp(output))
    }
}
