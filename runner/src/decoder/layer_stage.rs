//! The stage of a backend: its layers, their states, and the rows of the last pass.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use architectures::{Blueprint, LayerState};
use protocol::KvType;

use super::head::Head;
use super::layer::Layer;
use super::rotary_table::{InverseRotary, KeyRotary, RotaryTable};
use super::stage::{Fill, Logits, PassTokens, Removal, Stage, TakeRow};
use crate::backend::{
    Activations, Backend, LayerStates, NormOf, PassParts, Passes, Selection, SequenceId, Shift, StageSequences, State,
    StateShape,
};
use crate::heartbeat::Heartbeat;
use crate::layers::{Loader, Pass};
use crate::weights::Weights;

/// Largest number of tokens whose logits are in memory at a time: a vocabulary has up to some
/// hundred thousand.
const LOGITS: usize = 64;

/// Consecutive layers on one backend.
#[derive(Debug)]
pub(super) struct LayerStage<B: Backend> {
    backend: B,
    /// Norm of the embedding; only in the first stage.
    embedding_norm: Option<NormOf<B>>,
    layers: Vec<Layer<B>>,
    /// For each layer the state that it keeps of a sequence, and the rotary embedding of its keys,
    /// if any.
    states: Vec<(LayerState, Option<KeyRotary>)>,
    /// The distinct rotary embeddings of the layers.
    rotary_tables: Vec<RotaryTable>,
    /// Only in the last stage.
    head: Option<Head<B>>,
    /// Width of the residual stream.
    hidden: usize,
    /// Largest number of query heads of a layer of the decoder.
    heads: usize,
    heartbeat: Heartbeat,
    memory: Mutex<StageMemory<B>>,
    passes: B::Passes,
}

/// Data of a stage that passes change.
#[derive(Debug)]
struct StageMemory<B: Backend> {
    /// The states of each layer.
    states: Vec<LayerStates<B::State>>,
    /// Rotary angles of a pass. The next pass uses the same memory.
    angles: Vec<B::Angles>,
    /// The residual stream after the last layer, of all tokens of the last pass.
    stream: Option<B::Act>,
}

/// The sources from which a stage is loaded.
pub(super) struct StageSource<'a> {
    pub(super) weights: &'a Weights,
    pub(super) blueprint: &'a Blueprint,
    /// Indexes of the stage's layers.
    pub(super) layers: Range<usize>,
    /// Whether the stage is the last one.
    pub(super) is_last: bool,
    pub(super) heartbeat: &'a Heartbeat,
}

impl<B: Backend> LayerStage<B> {
    pub(super) fn load(backend: &B, source: &StageSource<'_>) -> Result<Self> {
        let StageSource { weights, blueprint, layers: range, is_last, heartbeat } = source;
        let hidden = blueprint.hidden as usize;
        let (mut rotary_tables, mut layers, mut states) = (Vec::new(), Vec::new(), Vec::new());
        let own = blueprint.layers.iter().zip(blueprint.states()).take(range.end).skip(range.start);
        for (layer, state) in own {
            let rotary = RotaryTable::of(weights, &layer.mixer, &mut rotary_tables)?;
            let loader = Loader { backend, weights, hidden, angles: rotary.map(|rotary| rotary.table) };
            layers.push(Layer::load(&loader, layer, blueprint.causal)?);
            states.push((state, rotary));
        }
        let embedding_norm = blueprint.embedding.norm.as_ref().filter(|_| range.start == 0);
        Ok(Self {
            embedding_norm: embedding_norm.map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            head: is_last.then(|| Head::load(backend, weights, blueprint)).transpose()?,
            memory: Mutex::new(StageMemory {
                states: layers.iter().map(|_| LayerStates::new()).collect(),
                angles: Vec::new(),
                stream: None,
            }),
            layers,
            states,
            rotary_tables,
            hidden,
            heads: blueprint.heads() as usize,
            heartbeat: (*heartbeat).clone(),
            passes: B::Passes::default(),
            backend: backend.clone(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, StageMemory<B>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self) -> Result<&Head<B>> {
        self.head.as_ref().context("invariant: the last stage has the head")
    }

    /// Returns, for each layer with rotated keys, the rotation that moves keys to their new
    /// positions.
    fn rotations(&self, removal: &Removal) -> Vec<Option<InverseRotary>> {
        let rotation = |key: KeyRotary| self.rotary_tables[key.table].inverse(key, removal.removed.len(), removal.long);
        self.states.iter().map(|(_, key)| key.map(rotation)).collect()
    }

    /// Calls `each` with the state of each layer and the change that a removal makes to it, until
    /// `each` returns an error.
    fn each_shift(
        &self,
        id: SequenceId,
        removal: &Removal,
        mut each: impl FnMut(&mut B::State, &Shift<'_>) -> Result<()>,
    ) -> Result<()> {
        let rotations = self.rotations(removal);
        for (states, rotation) in self.memory().states.iter_mut().zip(&rotations) {
            let rotation = rotation.as_ref().map(InverseRotary::of_keys);
            each(states.get_mut(id)?, &Shift { removed: removal.removed.clone(), rotation })?;
        }
        Ok(())
    }
}

impl<B: Backend> StageMemory<B> {
    fn stream(&self) -> Result<&B::Act> {
        self.stream.as_ref().context("invariant: the last pass was computed")
    }
}

impl<B: Backend> Stage for LayerStage<B> {
    fn open(&self, id: SequenceId, context: usize, kv_type: KvType) -> Result<()> {
        let mut memory = self.memory();
        for (states, (state, _)) in memory.states.iter_mut().zip(&self.states) {
            states.insert(id, self.backend.state(StateShape { state: *state, context, kv_type })?);
        }
        Ok(())
    }

    fn close(&self, id: SequenceId) {
        self.memory().states.iter_mut().for_each(|states| states.remove(id));
    }

    fn share(&self, from: SequenceId, to: SequenceId, length: usize) -> bool {
        self.memory().states.iter_mut().all(|states| {
            let shared = states.get(from).ok().and_then(|state| state.share(length));
            shared.map(|state| states.insert(to, state)).is_some()
        })
    }

    fn nearest(&self, id: SequenceId, length: usize) -> usize {
        let memory = self.memory();
        let each = memory.states.iter().map(|states| states.get(id).map_or(0, |state| state.nearest(length)));
        each.min().unwrap_or(length)
    }

    fn truncate(&self, id: SequenceId, length: usize) {
        let mut memory = self.memory();
        memory.states.iter_mut().filter_map(|states| states.get_mut(id).ok()).for_each(|state| state.truncate(length));
    }

    fn checkpoint(&self, id: SequenceId) {
        let mut memory = self.memory();
        memory.states.iter_mut().filter_map(|states| states.get_mut(id).ok()).for_each(State::checkpoint);
    }

    fn can_shift(&self, id: SequenceId, removal: &Removal) -> bool {
        let mut can = true;
        let all = self.each_shift(id, removal, |state, shift| {
            can &= state.can_shift(shift);
            Ok(())
        });
        all.is_ok() && can
    }

    fn shift(&self, id: SequenceId, removal: &Removal) -> Result<()> {
        self.each_shift(id, removal, State::shift)
    }

    fn chunk(&self, length: usize, tokens: usize) -> usize {
        self.backend.chunk(self.heads, length, tokens)
    }

    fn forward(&self, tokens: PassTokens<'_>, fill: &mut Fill<'_>) -> Result<()> {
        let (backend, count) = (&self.backend, tokens.positions.len());
        let mut memory = self.memory();
        let StageMemory { states, angles, stream } = &mut *memory;
        // Its memory is used again.
        *stream = None;
        let inputs = &mut |angles: &mut Vec<B::Angles>| {
            angles.clear();
            for table in &self.rotary_tables {
                angles.push(backend.angles(&table.angles(&tokens))?);
            }
            let rows = backend.rows(count, self.hidden, |rows| fill(rows))?;
            match &self.embedding_norm {
                Some(norm) => backend.norm(norm, &rows),
                None => Ok(rows),
            }
        };
        let layers = &mut |angles: &[B::Angles], mut x: B::Act, sequences: &mut StageSequences<'_, B>| {
            let pass = Pass { backend, angles };
            for (index, layer) in self.layers.iter().enumerate() {
                self.heartbeat.beat();
                x = layer.forward(&pass, x, &mut sequences.layer(index), count)?;
            }
            Ok(x)
        };
        let mut sequences = StageSequences { sequences: tokens.sequences, layers: states };
        *stream = Some(self.passes.compute(backend, angles, &mut sequences, PassParts { inputs, layers })?);
        Ok(())
    }

    fn read(&self, take: &mut TakeRow<'_>) -> Result<()> {
        let memory = self.memory();
        let stream = memory.stream()?;
        self.backend.read(stream, 0..stream.count(), take)
    }

    fn selects(&self) -> bool {
        self.backend.selector().is_some()
    }

    fn logits(&self, tokens: &[usize], take: &mut TakeRow<'_>) -> Result<()> {
        let (memory, head) = (self.memory(), self.head()?);
        for tokens in tokens.chunks(LOGITS) {
            let rows = self.backend.select(memory.stream()?, tokens)?;
            let logits = head.logits(&self.backend, rows)?;
            self.backend.read(&logits, 0..tokens.len(), take)?;
        }
        Ok(())
    }

    fn best(
        &self,
        wanted: &[(usize, Option<Selection>)],
        take: &mut dyn FnMut(usize, Logits<'_>) -> Result<()>,
    ) -> Result<()> {
        let (memory, head) = (self.memory(), self.head()?);
        let selector = self.backend.selector().context("invariant: the backend selects")?;
        for (part, wanted) in wanted.chunks(LOGITS).enumerate() {
            let tokens: Vec<usize> = wanted.iter().map(|(token, _)| *token).collect();
            let logits = head.logits(&self.backend, self.backend.select(memory.stream()?, &tokens)?)?;
            let (mut rows, mut selections) = (Vec::new(), Vec::new());
            for (row, (_, selection)) in wanted.iter().enumerate() {
                match selection {
                    Some(selection) => selections.push((row, selection)),
                    None => rows.push(row),
                }
            }
            if !selections.is_empty() {
                for (best, (row, _)) in selector.best(&logits, &selections)?.into_iter().zip(&selections) {
                    take(part * LOGITS + row, Logits::Best(best))?;
                }
            }
            for row in rows {
                let take = &mut |logits: &[f32]| take(part * LOGITS + row, Logits::Row(logits));
                self.backend.read(&logits, row..row + 1, take)?;
            }
        }
        Ok(())
    }

    fn hidden(&self, tokens: Range<usize>, take: &mut TakeRow<'_>) -> Result<()> {
        let (memory, rows) = (self.memory(), tokens.collect::<Vec<_>>());
        let hidden = self.head()?.hidden(&self.backend, self.backend.select(memory.stream()?, &rows)?)?;
        self.backend.read(&hidden, 0..rows.len(), take)
    }

    #[cfg(test)]
    fn replays(&self) -> u64 {
        self.passes.replays()
    }
}
