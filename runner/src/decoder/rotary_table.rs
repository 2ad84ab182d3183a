//! Rotary embeddings: the distinct tables of frequencies that the layers of a stage use.

use anyhow::{Result, ensure};
use architectures::{Blueprint, HeadLayout, Mixer, Rope, Switch};

use super::stage::PassTokens;
use crate::backend::{AnglesOf, KeyRotation};
use crate::weights::Weights;

/// A rotary embedding.
#[derive(Debug)]
pub(super) struct RotaryTable {
    /// Its parameters, the size of heads, and their layout.
    key: (Rope, u64, HeadLayout),
    /// Radians per position: for short sequences, then for long ones.
    frequencies: [Vec<f64>; 2],
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
struct MixerRotary<'a> {
    rope: &'a Rope,
    head_dim: u64,
    layout: HeadLayout,
    /// Index of the first rotated element of a key.
    first: usize,
}

fn rotary_of(mixer: &Mixer) -> Option<MixerRotary<'_>> {
    let (rope, head_dim, layout, first) = match mixer {
        Mixer::Attention(attention) => (attention.rope.as_ref()?, attention.head_dim, attention.layout, 0),
        Mixer::Latent(latent) => (&latent.rope, latent.rope_dim, latent.layout, latent.rank as usize),
        Mixer::DeltaNet(_) | Mixer::ShortConv(_) => return None,
    };
    Some(MixerRotary { rope, head_dim, layout, first })
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
    /// Returns the rotary embedding of a layer, if it has one. Adds its table to `tables` if none
    /// there is equal.
    pub(super) fn of(weights: &Weights, mixer: &Mixer, tables: &mut Vec<Self>) -> Result<Option<KeyRotary>> {
        let Some(MixerRotary { rope, head_dim, layout, first }) = rotary_of(mixer) else { return Ok(None) };
        let key = (rope.clone(), head_dim, layout);
        if let Some(table) = tables.iter().position(|table| table.key == key) {
            return Ok(Some(KeyRotary { table, first }));
        }
        let frequencies = |long: bool| -> Result<Vec<f64>> {
            let mut frequencies = rope.frequencies(head_dim, long);
            if let Some(divisors) = &rope.divisors {
                let divisors = weights.numbers(divisors.tensor(long), &[frequencies.len()])?;
                frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
            }
            Ok(frequencies)
        };
        let frequencies = [frequencies(false)?, frequencies(true)?];
        tables.push(Self { key, frequencies });
        Ok(Some(KeyRotary { table: tables.len() - 1, first }))
    }

    /// Returns the parameters of the angles of a pass.
    pub(super) fn angles<'a>(&'a self, tokens: &PassTokens<'a>) -> AnglesOf<'a> {
        AnglesOf {
            frequencies: [&self.frequencies[0], &self.frequencies[1]],
            positions: tokens.positions,
            long: tokens.long,
            magnitude: self.key.0.magnitude,
            layout: self.key.2,
        }
    }

    /// Returns the rotation that moves keys back by so many positions.
    pub(super) fn inverse(&self, key: KeyRotary, positions: usize, long: bool) -> InverseRotary {
        let frequencies = &self.frequencies[usize::from(long)];
        let angles = frequencies.iter().map(|frequency| -(positions as f64) * frequency);
        let (sines, cosines) = angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip();
        InverseRotary { cosines, sines, layout: self.key.2, first: key.first }
    }
}
