//! Softmax attention with grouped heads, from the normalized stream to the output projection.

use anyhow::{Context, Result};
use architectures::{AttentionGate, GateFunction, NormedPart};

use super::block_indexer::BlockIndexer;
use super::linear::Linear;
use super::{Loader, MixerPlace, Pass};
use crate::backend::{Attend, Backend, HeadPart, Map, NormOf, PositionBias, StageSequences, Values};
use crate::weights::HeadRows;

/// Attention.
#[derive(Debug)]
pub(crate) struct Attention<B: Backend> {
    query: Linear<B>,
    key_value: KeyValue<B>,
    output: Linear<B>,
    gate: Option<(B::Matrix, GateFunction)>,
    query_norm: Option<NormOf<B>>,
    key_norm: Option<NormOf<B>>,
    value_norm: Option<NormOf<B>>,
    norms_follow_rope: bool,
    output_norm: Option<NormOf<B>>,
    clip: Option<f32>,
    sinks: Option<B::Vector>,
    position_bias: Option<PositionBias>,
    /// The part of a head that RoPE is applied to, and the index of its angles.
    rotated: Option<(HeadPart, usize)>,
    /// The elements behind them, with other angles.
    rotated_behind: Option<(HeadPart, usize)>,
    /// A whole head, and the index of the growth of queries among the angles.
    growth: Option<(HeadPart, usize)>,
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    scale: f32,
    soft_cap: Option<f32>,
    window: Option<usize>,
    chunk: Option<usize>,
    causal: bool,
    has_causal_pictures: bool,
    indexer: Option<BlockIndexer<B>>,
}

/// The projections of keys and values.
#[derive(Debug)]
enum KeyValue<B: Backend> {
    /// One each.
    Each(Linear<B>, Linear<B>),
    /// Values are keys before their norm.
    Same(Linear<B>),
    /// None: keys and values are those of an earlier layer.
    OfOtherLayer,
}

impl<B: Backend> KeyValue<B> {
    /// `rows` is the order of the rows of keys.
    fn load(loader: &Loader<'_, B>, own: &architectures::Attention, rows: Option<HeadRows>) -> Result<Self> {
        let hidden = loader.hidden;
        if own.reads_layer.is_some() {
            return Ok(Self::OfOtherLayer);
        }
        let [keys, values] = [own.head_dim, own.value_dim].map(|size| (own.kv_heads * size) as usize);
        let key = Linear::load(loader, &own.key, [hidden, keys], rows)?;
        if own.value == own.key && own.value_norm.is_some() {
            return Ok(Self::Same(key));
        }
        Ok(Self::Each(key, Linear::load(loader, &own.value, [hidden, values], None)?))
    }
}

impl<B: Backend> Attention<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Attention, causal: bool) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let [heads, kv_heads, key_dim, value_dim] =
            [own.heads, own.kv_heads, own.head_dim, own.value_dim].map(|size| size as usize);
        let rotated = own.rope.as_ref().map_or(own.head_dim, |rope| rope.rotated(own.head_dim));
        let rows = Some(HeadRows { layout: own.layout, head_dim: own.head_dim });
        let linear = |projection, sizes, rows| Linear::load(loader, projection, sizes, rows);
        let norm = |norm: &Option<architectures::Norm>, heads: usize| {
            let norm = norm.as_ref().map(|norm| match own.normed {
                NormedPart::Head => weights.norm(backend, norm, key_dim),
                NormedPart::Width => weights.norm(backend, norm, heads * key_dim),
                NormedPart::EachHead => weights.norm_of_heads(backend, norm, [heads, key_dim]),
            });
            norm.transpose()
        };
        let gate = |gate: &AttentionGate| -> Result<(B::Matrix, GateFunction)> {
            let width = if gate.per_head { heads } else { heads * value_dim };
            Ok((weights.matrix(backend, &gate.projection, hidden, width, None)?, gate.function))
        };
        let key_norm = if own.reads_layer.is_some() { None } else { norm(&own.key_norm, kv_heads)? };
        let head = |count: usize| HeadPart { width: key_dim, first: 0, count };
        Ok(Self {
            query: linear(&own.query, [hidden, heads * key_dim], rows)?,
            key_value: KeyValue::load(loader, own, rows)?,
            output: linear(&own.output, [heads * value_dim, hidden], None)?,
            gate: own.gate.as_ref().map(gate).transpose()?,
            query_norm: norm(&own.query_norm, heads)?,
            key_norm,
            value_norm: own.value_norm.as_ref().map(|norm| weights.norm(backend, norm, value_dim)).transpose()?,
            output_norm: own
                .output_norm
                .as_ref()
                .map(|norm| weights.norm(backend, norm, heads * value_dim))
                .transpose()?,
            norms_follow_rope: own.norms_follow_rope,
            clip: own.clip.map(|clip| clip as f32),
            sinks: own.sinks.as_ref().map(|sinks| weights.vector(backend, sinks, heads)).transpose()?,
            position_bias: own
                .position_bias
                .as_ref()
                .map(|bias| PositionBias::load(weights, bias, own.heads))
                .transpose()?,
            rotated: angles.keys.map(|angles| (head(rotated as usize), angles)),
            rotated_behind: angles.second.map(|angles| {
                let count = own.second_rope.as_ref().map_or(0, |rope| rope.rotated(own.head_dim));
                (HeadPart { width: key_dim, first: rotated as usize, count: count as usize }, angles)
            }),
            growth: angles.growth.map(|growth| (head(key_dim), growth)),
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: own.scale as f32,
            soft_cap: own.soft_cap.map(|cap| cap as f32),
            window: own.window.map(|window| window as usize),
            chunk: own.chunk.map(|chunk| chunk as usize),
            causal,
            has_causal_pictures: own.has_causal_pictures,
            indexer: own.indexer.as_ref().map(|indexer| BlockIndexer::load(loader, own, indexer)).transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut StageSequences<'_, B>,
        place: MixerPlace,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let chosen = self.indexer.as_ref().map(|indexer| indexer.choose(pass, x, sequences, place)).transpose()?;
        let value_norm = self.value_norm.as_ref();
        let (query, given) = match &self.key_value {
            KeyValue::Each(key, value) => {
                let [query, key, value] = Linear::project(backend, [&self.query, key, value], x)?;
                (query, Some((key, normed(backend, value, value_norm)?)))
            }
            KeyValue::Same(key) => {
                let [query, key] = Linear::project(backend, [&self.query, key], x)?;
                let norm = value_norm.context("invariant: values that are keys have a norm")?;
                let value = backend.norm(norm, &key)?;
                (query, Some((key, value)))
            }
            KeyValue::OfOtherLayer => {
                let [query] = Linear::project(backend, [&self.query], x)?;
                (query, None)
            }
        };
        let query = self.prepared(pass, query, self.query_norm.as_ref())?;
        let query = turned(pass, query, self.growth)?;
        let given = match given {
            Some((key, value)) => {
                Some((self.prepared(pass, key, self.key_norm.as_ref())?, self.clipped(backend, value)?))
            }
            None => None,
        };
        let attend = Attend {
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            values: Values::Own,
            scale: self.scale,
            soft_cap: self.soft_cap,
            window: self.window,
            chunk: self.chunk,
            causal: self.causal,
            has_causal_pictures: self.has_causal_pictures,
            reads_only: given.is_none(),
            sinks: self.sinks.as_ref(),
            position_bias: self.position_bias.as_ref(),
            indexer: None,
            chosen: chosen.as_deref(),
            entries: None,
        };
        let (key, value) = given.as_ref().map_or((&query, &query), |(key, value)| (key, value));
        let mixed = backend.attend(&attend, [&query, key, value], &mut sequences.layer(place.layer, place.states))?;
        let mixed = self.gated(backend, x, mixed)?;
        let mixed = normed(backend, mixed, self.output_norm.as_ref())?;
        let [out] = Linear::project(backend, [&self.output], &mixed)?;
        Ok(out)
    }

    /// Multiplies the weighted values with the gate, if there is one.
    fn gated(&self, backend: &B, x: &B::Act, mixed: B::Act) -> Result<B::Act> {
        let Some((gate, function)) = &self.gate else { return Ok(mixed) };
        let [gate] = backend.project([gate], x)?;
        let map = match function {
            GateFunction::Sigmoid => Map::Sigmoid(&gate),
            GateFunction::Softplus => Map::Softplus(&gate),
            GateFunction::Silu => Map::Silu(&gate),
        };
        backend.map(mixed, map)
    }

    fn clipped(&self, backend: &B, x: B::Act) -> Result<B::Act> {
        match self.clip {
            Some(limit) => backend.map(x, Map::Clamp { low: -limit, high: limit }),
            None => Ok(x),
        }
    }

    /// Normalizes and clips queries or keys and applies RoPE to them.
    fn prepared(&self, pass: &Pass<'_, B>, x: B::Act, norm: Option<&NormOf<B>>) -> Result<B::Act> {
        if self.norms_follow_rope {
            let x = self.rotated(pass, self.clipped(pass.backend, x)?)?;
            return normed(pass.backend, x, norm);
        }
        let x = normed(pass.backend, x, norm)?;
        self.rotated(pass, self.clipped(pass.backend, x)?)
    }

    fn rotated(&self, pass: &Pass<'_, B>, x: B::Act) -> Result<B::Act> {
        turned(pass, turned(pass, x, self.rotated)?, self.rotated_behind)
    }
}

fn normed<B: Backend>(backend: &B, x: B::Act, norm: Option<&NormOf<B>>) -> Result<B::Act> {
    match norm {
        Some(norm) => backend.norm(norm, &x),
        None => Ok(x),
    }
}

/// Rotates a part of each head by the angles with an index.
fn turned<B: Backend>(pass: &Pass<'_, B>, x: B::Act, rotation: Option<(HeadPart, usize)>) -> Result<B::Act> {
    match rotation {
        Some((part, angles)) => pass.backend.rotate(x, part, &pass.angles[angles]),
        None => Ok(x),
    }
}
