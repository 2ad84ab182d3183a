//! Rotary embeddings: the distinct tables of frequencies that the layers of a stage use. The growth
//! of queries with the position is a table whose angles are 0, so that only its factor applies.

use anyhow::{Result, ensure};
use architectures::{Axis, BlockRule, Blueprint, HeadLayout, Mixer, QueryGrowth, Rope, Switch};

use super::stage::PassTokens;
use crate::backend::{AnglesOf, KeyRotation};
use crate::weights::Weights;

/// A rotary embedding, or the growth of queries.
#[derive(Debug)]
pub(super) struct RotaryTable {
    key: TableKey,
    /// Radians per position: for short sequences, then for long ones.
    frequencies: [Vec<f64>; 2],
    /// Axis of each pair; empty if tokens have one position.
    axes: Vec<Axis>,
}

/// The parameters of a table.
#[derive(Debug, PartialEq)]
struct TableKey {
    /// `None` for the growth of queries.
    rope: Option<Rope>,
    growth: Option<QueryGrowth>,
    /// Number of elements of a head.
    head_dim: u64,
    layout: HeadLayout,
    /// Number that is subtracted from positions.
    back: u64,
}

/// Indexes of a layer's tables among those of the stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerTables {
    pub(super) keys: Option<KeyRotary>,
    /// Index of the table of the elements behind the ones of `keys`.
    pub(super) second: Option<usize>,
    /// Index of the table with the growth of queries.
    pub(super) growth: Option<usize>,
    /// Index of the table of the keys of the indexer, and of its queries in latent attention.
    pub(super) indexer: Option<usize>,
    /// Index of the table of compressed entries.
    pub(super) entries: Option<usize>,
    /// Index of the table that rotates outputs back.
    pub(super) outputs: Option<usize>,
}

/// The rotary embedding of a layer's keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRotary {
    /// Index of the table among those of the stage.
    pub(super) table: usize,
    /// Index of the first rotated element of a key.
    first: usize,
}

/// A rotation that moves keys back by some positions.
#[derive(Debug)]
pub(super) struct InverseRotary {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    layout: HeadLayout,
    first: usize,
}

impl InverseRotary {
    pub(super) fn of_keys(&self) -> KeyRotation<'_> {
        KeyRotation { cosines: &self.cosines, sines: &self.sines, layout: self.layout, first: self.first }
    }
}

/// The parameters of a mixer's rotary embedding.
#[derive(Clone, Copy)]
struct MixerRotary<'a> {
    rope: &'a Rope,
    head_dim: u64,
    layout: HeadLayout,
    /// Index of the first rotated element of a key.
    first: usize,
    /// Number that is subtracted from positions.
    back: u64,
}

fn rotary_of(mixer: &Mixer) -> Option<MixerRotary<'_>> {
    let (rope, head_dim, layout, first) = match mixer {
        Mixer::Attention(attention) => (attention.rope.as_ref()?, attention.head_dim, attention.layout, 0),
        Mixer::Latent(latent) => (&latent.rope, latent.rope_dim, latent.layout, latent.rank as usize),
        Mixer::Compressed(own) => (&own.rope, own.rope_dim, own.layout, (own.head_dim - own.rope_dim) as usize),
        _ => return None,
    };
    Some(MixerRotary { rope, head_dim, layout, first, back: 0 })
}

/// Returns the rotary embedding of a mixer's indexer.
fn indexer_rotary(mixer: &Mixer) -> Option<MixerRotary<'_>> {
    let Mixer::Latent(latent) = mixer else {
        let block = mixer.block_indexer()?;
        // The key of a block is computed at its last position, and rotated by its first one.
        let back = if block.rule == BlockRule::Mean { block.block - 1 } else { 0 };
        return Some(MixerRotary { back, ..rotary_of(mixer)? });
    };
    let layout = latent.indexer.as_ref()?.layout;
    Some(MixerRotary { rope: &latent.rope, head_dim: latent.rope_dim, layout, first: 0, back: 0 })
}

/// Returns the growth of a mixer's queries, with the number of elements of a head.
fn growth_of(mixer: &Mixer) -> Option<(QueryGrowth, u64)> {
    match mixer {
        Mixer::Attention(attention) => Some((attention.query_growth?, attention.head_dim)),
        Mixer::Latent(latent) => Some((latent.query_growth?, latent.nope_dim + latent.rope_dim)),
        _ => None,
    }
}

/// Returns the rule that selects one of two sets of rotary frequencies for a sequence.
///
/// # Errors
/// Fails if layers have different rules.
pub(super) fn switch(blueprint: &Blueprint) -> Result<Option<Switch>> {
    let mut switches = blueprint.layers.iter().filter_map(|layer| rotary_of(&layer.mixer)?.rope.switch());
    let switch = switches.next();
    ensure!(switches.all(|other| Some(other) == switch), "layers change their frequencies at different lengths");
    Ok(switch)
}

impl RotaryTable {
    /// Returns the tables of a layer. Adds those to `tables` that have no equal there.
    pub(super) fn of(weights: &Weights, mixer: &Mixer, tables: &mut Vec<Self>) -> Result<LayerTables> {
        let keys = rotary_of(mixer).map(|rotary| Self::of_keys(weights, &rotary, tables)).transpose()?;
        let growth = growth_of(mixer).map(|(growth, head_dim)| {
            let key = TableKey { rope: None, growth: Some(growth), head_dim, layout: HeadLayout::Half, back: 0 };
            let frequencies = vec![0.0; head_dim as usize / 2];
            Self::index(key, [frequencies.clone(), frequencies], tables)
        });
        let mut table =
            |rotary: &MixerRotary<'_>| -> Result<usize> { Ok(Self::of_keys(weights, rotary, tables)?.table) };
        let indexer = indexer_rotary(mixer).map(|rotary| table(&rotary)).transpose()?;
        let second = match (mixer, rotary_of(mixer)) {
            (Mixer::Attention(own), Some(rotary)) => {
                own.second_rope.as_ref().map(|rope| table(&MixerRotary { rope, ..rotary })).transpose()?
            }
            _ => None,
        };
        let (mut entries, mut outputs) = (None, None);
        if let (Mixer::Compressed(own), Some(rotary)) = (mixer, rotary_of(mixer)) {
            let back = Rope { reversed: !own.rope.reversed, ..own.rope.clone() };
            outputs = Some(table(&MixerRotary { rope: &back, ..rotary })?);
            // An entry is made at the last position of its segment, and rotated by the first one.
            let back = own.entries.as_ref().map(|own| own.compression.every - 1);
            entries = back.map(|back| table(&MixerRotary { back, ..rotary })).transpose()?;
        }
        Ok(LayerTables { keys, second, growth, indexer, entries, outputs })
    }

    /// Returns the index of a table, after adding it if it has no equal.
    fn index(key: TableKey, frequencies: [Vec<f64>; 2], tables: &mut Vec<Self>) -> usize {
        tables.iter().position(|table| table.key == key).unwrap_or_else(|| {
            let axes = key.rope.as_ref().and_then(|rope| rope.axes);
            let axes = axes.map_or_else(Vec::new, |axes| axes.of_pairs(frequencies[0].len()));
            tables.push(Self { key, frequencies, axes });
            tables.len() - 1
        })
    }

    fn of_keys(weights: &Weights, rotary: &MixerRotary<'_>, tables: &mut Vec<Self>) -> Result<KeyRotary> {
        let MixerRotary { rope, head_dim, layout, first, back } = *rotary;
        let frequencies = |long: bool| -> Result<Vec<f64>> {
            let mut frequencies = rope.frequencies(head_dim, long);
            if let Some(divisors) = &rope.divisors {
                let divisors = weights.numbers(divisors.tensor(long), &[frequencies.len()])?;
                frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
            }
            Ok(frequencies)
        };
        let frequencies = [frequencies(false)?, frequencies(true)?];
        let key = TableKey { rope: Some(rope.clone()), growth: None, head_dim, layout, back };
        Ok(KeyRotary { table: Self::index(key, frequencies, tables), first })
    }

    /// Returns the parameters of the angles of a pass.
    pub(super) fn angles<'a>(&'a self, tokens: &PassTokens<'a>) -> AnglesOf<'a> {
        AnglesOf {
            frequencies: [&self.frequencies[0], &self.frequencies[1]],
            positions: tokens.positions,
            axes: &self.axes,
            back: self.key.back as usize,
            long: tokens.long,
            magnitude: self.key.rope.as_ref().map_or(1.0, |rope| rope.magnitude),
            growth: self.key.growth,
            layout: self.key.layout,
        }
    }

    /// Returns the rotation that moves keys back by so many positions.
    pub(super) fn inverse(&self, key: KeyRotary, positions: usize, long: bool) -> InverseRotary {
        let frequencies = &self.frequencies[usize::from(long)];
        let angles = frequencies.iter().map(|frequency| -(positions as f64) * frequency);
        let (sines, cosines) = angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip();
        InverseRotary { cosines, sines, layout: self.key.layout, first: key.first }
    }
}
