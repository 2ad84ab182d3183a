//! The stage of a backend: its layers, their states, and the rows of the last pass.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use architectures::{Blueprint, Mixer};
use protocol::KvType;

use super::head::Head;
use super::layer::{Layer, LayerPlace};
use super::rotary_table::{InverseRotary, KeyRotary, LayerTables, RotaryTable};
use super::stage::{DeepRows, Fill, Logits, PassTokens, Removal, Stage, TakeLogits, TakeRow};
use super::state_shapes::{MixerShape, StateShapes};
use super::token_rows::TokenRows;
use crate::backend::{
    Activations, Backend, HeadCounts, NormOf, PassExecution, PassParts, Selection, SequenceId, Shift, StageSequences,
    State, StateShape, StatesBySequence,
};
use crate::heartbeat::Heartbeat;
use crate::layers::{LayerAngles, LayerTokens, Loader, Pass, Streams};
use crate::weights::Weights;

/// Largest number of rows of logits in memory at a time. A row has a number for each token of the
/// vocabulary, up to some hundred thousand.
const LOGIT_ROWS: usize = 64;

/// The reason why there are no rows.
const NO_PASS: &str = "invariant: the last pass was computed";

/// Consecutive layers on one backend.
#[derive(Debug)]
pub(super) struct LayerStage<B: Backend> {
    backend: B,
    /// Norm of the embedding; only in the first stage.
    embedding_norm: Option<NormOf<B>>,
    /// Numbers of tokens behind the residual stream, if the model has them.
    token_rows: Option<TokenRows<B>>,
    /// Several residual streams, if the model has them.
    streams: Option<Streams<B>>,
    layers: Vec<Layer<B>>,
    /// Index of the first layer in the decoder.
    first_layer: usize,
    /// The place of each layer.
    places: Vec<LayerPlace>,
    /// Whether rotating keys moves them to other positions: not if norms with weights follow RoPE,
    /// if there are keys of an indexer, or if the embedding contains the position.
    rotates_keys: bool,
    /// The states that layers keep of a sequence: those of each layer's mixer, then those of
    /// indexers, second mixers and n-grams.
    shapes: Vec<MixerShape>,
    /// The distinct rotary embeddings of the layers.
    rotary_tables: Vec<RotaryTable>,
    /// Only in the last stage.
    head: Option<Head<B>>,
    /// Width of the residual stream.
    hidden: usize,
    heads: HeadCounts,
    heartbeat: Heartbeat,
    memory: Mutex<StageMemory<B>>,
    execution: B::Execution,
}

/// Data of a stage that passes change.
#[derive(Debug)]
struct StageMemory<B: Backend> {
    /// The states of each mixer, in the order of the shapes.
    states: Vec<StatesBySequence<B::State>>,
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
        let is_whole = range.start == 0 && range.end == blueprint.layers.len();
        ensure!(
            is_whole || blueprint.is_divisible(),
            "the layers of this model use each other's keys, have their own embeddings or experts of tokens, or compute several streams; they must all be on one device"
        );
        let token_rows = TokenRows::load(backend, weights, blueprint)?;
        let token_input = blueprint.embedding.of_layers.as_ref().map_or(0, |own| own.width as usize);
        let (mut rotary_tables, mut layers, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut shapes = StateShapes::new(blueprint, range.clone());
        for index in range.clone() {
            let layer = &blueprint.layers[index];
            let tables = RotaryTable::of(weights, &layer.mixer, &mut rotary_tables)?;
            let LayerTables { keys, second, growth, indexer, entries, outputs } = tables;
            let angles = LayerAngles { keys: keys.map(|keys| keys.table), second, growth, indexer, entries, outputs };
            let loader = Loader { backend, weights, hidden, angles, token_input, streams: blueprint.streams.as_ref() };
            layers.push(Layer::load(&loader, layer, blueprint.causal)?);
            places.push(shapes.add(index, keys));
        }
        let shapes = shapes.all();
        let embedding_norm = blueprint.embedding.norm.as_ref().filter(|_| range.start == 0);
        Ok(Self {
            embedding_norm: embedding_norm.map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            head: is_last.then(|| Head::load(backend, weights, blueprint)).transpose()?,
            memory: Mutex::new(StageMemory {
                states: shapes.iter().map(|_| StatesBySequence::new()).collect(),
                angles: Vec::new(),
                stream: None,
            }),
            token_rows,
            streams: Streams::load(backend, weights, blueprint)?,
            layers,
            first_layer: range.start,
            places,
            rotates_keys: blueprint.embedding.positions.is_none()
                && blueprint.layers.iter().all(|layer| rotates_keys(&layer.mixer)),
            shapes,
            rotary_tables,
            hidden,
            heads: head_counts(blueprint),
            heartbeat: (*heartbeat).clone(),
            execution: B::Execution::default(),
            backend: backend.clone(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, StageMemory<B>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns some rows of the last pass. The lock is released before the rows are read, because
    /// the reader may use the states of sequences.
    fn select(&self, rows: &[usize]) -> Result<B::Act> {
        self.backend.select(self.memory().stream.as_ref().context(NO_PASS)?, rows)
    }

    /// Returns the rows of pictures that are added behind this stage's first layers.
    fn deep_rows(&self, deep: &DeepRows) -> Result<Vec<B::Act>> {
        let own = deep.layers.iter().skip(self.first_layer).take(self.layers.len());
        let rows = |numbers: &Vec<f32>| {
            self.backend.rows(deep.tokens.len(), self.hidden, |rows| {
                rows.copy_from_slice(numbers);
                Ok(())
            })
        };
        own.map(rows).collect()
    }

    fn head(&self) -> Result<&Head<B>> {
        self.head.as_ref().context("invariant: the last stage has the head")
    }

    /// Returns, for each mixer with rotated keys, the rotation that moves keys to their new
    /// positions.
    fn rotations(&self, removal: &Removal) -> Vec<Option<InverseRotary>> {
        let rotation = |key: KeyRotary| self.rotary_tables[key.table].inverse(key, removal.removed.len(), removal.long);
        self.shapes.iter().map(|shape| shape.keys.map(rotation)).collect()
    }
}

/// Whether the keys of a mixer are at other positions once they are rotated.
fn rotates_keys(mixer: &Mixer) -> bool {
    match mixer {
        Mixer::Attention(own) => {
            let rotates = !own.norms_follow_rope || own.key_norm.as_ref().is_none_or(|norm| norm.weight.is_none());
            rotates && own.indexer.is_none()
        }
        // The keys of the indexer would have to be rotated too.
        Mixer::Latent(own) => own.indexer.is_none(),
        _ => true,
    }
}

fn head_counts(blueprint: &Blueprint) -> HeadCounts {
    let heads = |layer: &architectures::Layer| layer.mixer.score_heads() as usize;
    let most = |layers: &mut dyn Iterator<Item = &architectures::Layer>| layers.map(heads).max().unwrap_or(0);
    HeadCounts {
        all: most(&mut blueprint.layers.iter()),
        without_kernels: most(&mut blueprint.layers.iter().filter(|layer| !layer.mixer.has_plain_scores())),
    }
}

impl<B: Backend> StageMemory<B> {
    /// Returns the states of an open sequence, mixer by mixer.
    fn states_of(&mut self, id: SequenceId) -> impl Iterator<Item = &mut B::State> {
        self.states.iter_mut().map(move |states| states.get_mut(id).expect("invariant: the sequence is open"))
    }
}

/// Returns the change that a removal makes to the state of a mixer.
fn shift_of<'a>(removal: &Removal, rotation: Option<&'a InverseRotary>) -> Shift<'a> {
    Shift { removed: removal.removed.clone(), rotation: rotation.map(InverseRotary::of_keys) }
}

impl<B: Backend> Stage for LayerStage<B> {
    fn open(&self, id: SequenceId, context: usize, kv_type: KvType) -> Result<()> {
        let mut memory = self.memory();
        for (states, shape) in memory.states.iter_mut().zip(&self.shapes) {
            let MixerShape { state, has_plain_scores, .. } = *shape;
            states.insert(id, self.backend.state(StateShape { state, has_plain_scores, context, kv_type })?);
        }
        Ok(())
    }

    fn close(&self, id: SequenceId) {
        self.memory().states.iter_mut().for_each(|states| states.remove(id));
    }

    fn share(&self, from: SequenceId, to: SequenceId, length: usize) -> bool {
        self.memory().states.iter_mut().all(|states| {
            let Some(shared) = states.get(from).ok().and_then(|state| state.share(length)) else { return false };
            states.insert(to, shared);
            true
        })
    }

    fn nearest(&self, id: SequenceId, length: usize) -> usize {
        self.memory().states_of(id).map(|state| state.nearest(length)).min().unwrap_or(length)
    }

    fn truncate(&self, id: SequenceId, length: usize) {
        self.memory().states_of(id).for_each(|state| state.truncate(length));
    }

    fn checkpoint(&self, id: SequenceId) {
        self.memory().states_of(id).for_each(State::checkpoint);
    }

    fn can_shift(&self, id: SequenceId, removal: &Removal) -> bool {
        let rotations = self.rotations(removal);
        let mut memory = self.memory();
        self.rotates_keys
            && memory
                .states_of(id)
                .zip(&rotations)
                .all(|(state, rotation)| state.can_shift(&shift_of(removal, rotation.as_ref())))
    }

    fn shift(&self, id: SequenceId, removal: &Removal) -> Result<()> {
        let rotations = self.rotations(removal);
        let mut memory = self.memory();
        memory
            .states_of(id)
            .zip(&rotations)
            .try_for_each(|(state, rotation)| state.shift(&shift_of(removal, rotation.as_ref())))
    }

    fn chunk(&self, length: usize, tokens: usize) -> usize {
        self.backend.chunk(self.heads, length, tokens)
    }

    fn forward(&self, tokens: PassTokens<'_>, fill: &mut Fill<'_>) -> Result<()> {
        let (backend, count) = (&self.backend, tokens.positions.len());
        let deep = self.deep_rows(tokens.deep)?;
        let mut memory = self.memory();
        let StageMemory { states, angles, stream } = &mut *memory;
        // A backend may record the layers and replay them, so the pass is handed over in two parts.
        let inputs = &mut |angles: &mut Vec<B::Angles>| {
            angles.clear();
            for table in &self.rotary_tables {
                angles.push(backend.angles(&table.angles(&tokens))?);
            }
            let width = self.token_rows.as_ref().map_or(self.hidden, TokenRows::row_width);
            let rows = backend.rows(count, width, |rows| fill(rows))?;
            match &self.embedding_norm {
                Some(norm) => backend.norm(norm, &rows),
                None => Ok(rows),
            }
        };
        let layers = &mut |angles: &[B::Angles], mut x: B::Act, sequences: &mut StageSequences<'_, B>| {
            let pass = Pass { backend, angles };
            let mut own = None;
            if let Some(token_rows) = &self.token_rows {
                let (stream, all) = token_rows.complete(backend, &x)?;
                (x, own) = (stream, Some((token_rows, all)));
            }
            if let Some(streams) = &self.streams {
                x = streams.enter(backend, x)?;
            }
            for (layer, place) in self.layers.iter().zip(&self.places) {
                self.heartbeat.beat();
                let own = match &own {
                    Some((token_rows, all)) => token_rows.of_layer(backend, all, place.mixer.layer)?,
                    None => None,
                };
                let own_tokens = LayerTokens { count, own: own.as_ref() };
                x = layer.forward(&pass, x, &own_tokens, (sequences, *place))?;
                if let Some(rows) = deep.get(place.mixer.layer) {
                    let picture_tokens = &tokens.deep.tokens;
                    x = backend.scatter(x, rows, picture_tokens, &vec![1.0; picture_tokens.len()])?;
                }
            }
            match &self.streams {
                Some(streams) => streams.leave(backend, &x),
                None => Ok(x),
            }
        };
        let mut sequences = StageSequences { sequences: tokens.sequences, layers: states };
        *stream = Some(self.execution.compute(backend, angles, &mut sequences, PassParts { inputs, layers })?);
        Ok(())
    }

    fn read(&self, take: &mut TakeRow<'_>) -> Result<()> {
        let stream = self.memory().stream.take().context(NO_PASS)?;
        self.backend.read(&stream, 0..stream.count(), take)
    }

    fn forget(&self) {
        self.memory().stream = None;
    }

    fn selects(&self) -> bool {
        self.backend.selects()
    }

    fn logits(&self, tokens: &[usize], take: &mut TakeRow<'_>) -> Result<()> {
        for tokens in tokens.chunks(LOGIT_ROWS) {
            let logits = self.head()?.logits(&self.backend, self.select(tokens)?)?;
            self.backend.read(&logits, 0..tokens.len(), take)?;
        }
        Ok(())
    }

    fn best(&self, wanted: &[(usize, Option<Selection>)], take: &mut TakeLogits<'_>) -> Result<()> {
        for (part, wanted) in wanted.chunks(LOGIT_ROWS).enumerate() {
            let tokens: Vec<usize> = wanted.iter().map(|(token, _)| *token).collect();
            let logits = self.head()?.logits(&self.backend, self.select(&tokens)?)?;
            let (mut rows, mut selections) = (Vec::new(), Vec::new());
            for (row, (_, selection)) in wanted.iter().enumerate() {
                match selection {
                    Some(selection) => selections.push((row, selection)),
                    None => rows.push(row),
                }
            }
            if !selections.is_empty() {
                for (best, (row, _)) in self.backend.best(&logits, &selections)?.into_iter().zip(&selections) {
                    take(part * LOGIT_ROWS + row, Logits::Best(best))?;
                }
            }
            for row in rows {
                let take = &mut |logits: &[f32]| take(part * LOGIT_ROWS + row, Logits::Row(logits));
                self.backend.read(&logits, row..row + 1, take)?;
            }
        }
        Ok(())
    }

    fn hidden(&self, tokens: Range<usize>, take: &mut TakeRow<'_>) -> Result<()> {
        let rows: Vec<usize> = tokens.collect();
        let hidden = self.head()?.hidden(&self.backend, self.select(&rows)?)?;
        self.backend.read(&hidden, 0..rows.len(), take)
    }

    fn embed(&self, pooled: Vec<f32>) -> Result<Vec<f32>> {
        self.head()?.embed(&self.backend, pooled)
    }

    #[cfg(test)]
    fn replays(&self) -> u64 {
        self.execution.replays()
    }
}
