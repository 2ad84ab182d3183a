//! Softmax attention with grouped heads, from the normalized stream to the output projection.

use anyhow::Result;
use architectures::NormedPart;

use super::{Loader, Pass};
use crate::backend::{Attend, Backend, HeadPart, LayerSequences, Map, NormOf, Values};
use crate::weights::HeadRows;

/// Attention.
#[derive(Debug)]
pub(crate) struct Attention<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    output: B::Matrix,
    gate: Option<B::Matrix>,
    query_norm: Option<NormOf<B>>,
    key_norm: Option<NormOf<B>>,
    clip: Option<f32>,
    sinks: Option<B::Vector>,
    /// The part of a head that RoPE is applied to, and the index of its angles.
    rotated: Option<(HeadPart, usize)>,
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    scale: f32,
    soft_cap: Option<f32>,
    window: Option<usize>,
    causal: bool,
}

impl<B: Backend> Attention<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Attention, causal: bool) -> Result<Self> {
        let Loader { backend, weights, hidden, angles } = *loader;
        let [heads, kv_heads, key_dim, value_dim] =
            [own.heads, own.kv_heads, own.head_dim, own.value_dim].map(|size| size as usize);
        let rotated = own.rope.as_ref().map_or(own.head_dim, |rope| rope.rotated(own.head_dim));
        let rows = Some(HeadRows { layout: own.layout, head_dim: own.head_dim });
        let matrix = |projection, input, output, rows| weights.matrix(backend, projection, input, output, rows);
        let norm = |norm: &Option<architectures::Norm>, heads: usize| {
            let norm = norm.as_ref().map(|norm| match own.normed {
                NormedPart::Head => weights.norm(backend, norm, key_dim),
                NormedPart::Width => weights.norm(backend, norm, heads * key_dim),
                NormedPart::EachHead => weights.norm_of_heads(backend, norm, [heads, key_dim]),
            });
            norm.transpose()
        };
        Ok(Self {
            query: matrix(&own.query, hidden, heads * key_dim, rows)?,
            key: matrix(&own.key, hidden, kv_heads * key_dim, rows)?,
            value: matrix(&own.value, hidden, kv_heads * value_dim, None)?,
            output: matrix(&own.output, heads * value_dim, hidden, None)?,
            gate: own.gate.as_ref().map(|gate| matrix(gate, hidden, heads * value_dim, None)).transpose()?,
            query_norm: norm(&own.query_norm, heads)?,
            key_norm: norm(&own.key_norm, kv_heads)?,
            clip: own.clip.map(|clip| clip as f32),
            sinks: own.sinks.as_ref().map(|sinks| weights.vector(backend, sinks, heads)).transpose()?,
            rotated: angles.map(|angles| (HeadPart { width: key_dim, first: 0, count: rotated as usize }, angles)),
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: own.scale as f32,
            soft_cap: own.soft_cap.map(|cap| cap as f32),
            window: own.window.map(|window| window as usize),
            causal,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let [query, key, value] = backend.project([&self.query, &self.key, &self.value], x)?;
        let query = self.prepared(pass, query, self.query_norm.as_ref())?;
        let key = self.prepared(pass, key, self.key_norm.as_ref())?;
        let value = self.clipped(backend, value)?;
        let attend = Attend {
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            values: Values::Own,
            scale: self.scale,
            soft_cap: self.soft_cap,
            window: self.window,
            causal: self.causal,
            sinks: self.sinks.as_ref(),
        };
        let mut mixed = backend.attend(&attend, [&query, &key, &value], sequences)?;
        if let Some(gate) = &self.gate {
            let [gate] = backend.project([gate], x)?;
            mixed = backend.map(mixed, Map::Sigmoid(&gate))?;
        }
        let [out] = backend.project([&self.output], &mixed)?;
        Ok(out)
    }

    fn clipped(&self, backend: &B, x: B::Act) -> Result<B::Act> {
        match self.clip {
            Some(limit) => backend.map(x, Map::Clamp(limit)),
            None => Ok(x),
        }
    }

    /// Normalizes and clips queries or keys, then applies RoPE to them.
    fn prepared(&self, pass: &Pass<'_, B>, x: B::Act, norm: Option<&NormOf<B>>) -> Result<B::Act> {
        let x = match norm {
            Some(norm) => pass.backend.norm(norm, &x)?,
            None => x,
        };
        let x = self.clipped(pass.backend, x)?;
        match self.rotated {
            Some((part, angles)) => pass.backend.rotate(x, part, &pass.angles[angles]),
            None => Ok(x),
        }
    }
}
