//! Compression of segments of positions to entries, see [`architectures::Compression`].

use anyhow::{Context, Result};

use super::{EntryStates, Loader, Pass};
use crate::backend::{Backend, Compression, HeadPart, NormOf, StageSequences};

/// Makes and keeps entries.
#[derive(Debug)]
pub(super) struct Compressor<B: Backend> {
    value: B::Matrix,
    gate: B::Matrix,
    rule: Compression<B>,
    norm: NormOf<B>,
    rotated: HeadPart,
    /// Index of the angles of entries.
    angles: usize,
}

impl<B: Backend> Compressor<B> {
    /// Loads a compression to entries of `width` elements, of which the last `rope_dim` are
    /// rotated.
    pub(super) fn load(
        loader: &Loader<'_, B>,
        own: &architectures::Compression,
        [width, rope_dim]: [usize; 2],
    ) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let (every, rows) = (own.every as usize, own.value_width(width as u64) as usize);
        let bias = backend.vector(weights.numbers(&own.bias, &[every, rows])?)?;
        Ok(Self {
            value: weights.matrix(backend, &own.value, hidden, rows, None)?,
            gate: weights.matrix(backend, &own.gate, hidden, rows, None)?,
            rule: Compression { every, overlaps: own.overlaps, width, bias },
            norm: weights.norm(backend, &own.norm, width)?,
            rotated: HeadPart { width, first: width - rope_dim, count: rope_dim },
            angles: angles.entries.context("invariant: entries have rotary angles")?,
        })
    }

    /// Returns the number of positions of a segment.
    pub(super) fn every(&self) -> usize {
        self.rule.every
    }

    /// Makes entries of the normalized stream `x`, and keeps the complete ones.
    pub(super) fn keep(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut StageSequences<'_, B>,
        (layer, states): (usize, EntryStates),
    ) -> Result<()> {
        let backend = pass.backend;
        let [values, gates] = backend.project([&self.value, &self.gate], x)?;
        let made = backend.compress(&self.rule, &values, &gates, &mut sequences.layer(layer, states.past))?;
        let normed = backend.norm(&self.norm, &made)?;
        let rotated = backend.rotate(normed, self.rotated, &pass.angles[self.angles])?;
        backend.keep_entries(&rotated, &mut sequences.layer(layer, states.entries))
    }
}
