//! The states that the layers of a stage keep of a sequence, and their order: those of each layer's
//! mixer, then those of indexers, compressions, second mixers and n-grams.

use std::ops::Range;

use architectures::{BlockIndexer, Blueprint, LayerState, Mixer};

use super::layer::LayerPlace;
use super::rotary_table::KeyRotary;
use crate::layers::{EntryStates, IndexerStates, MixerPlace};

/// The state that a mixer, or another part of a layer, keeps of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixerShape {
    pub(super) state: LayerState,
    /// The rotary embedding of its keys, if any.
    pub(super) keys: Option<KeyRotary>,
    /// See [`StateShape::has_plain_scores`](crate::backend::StateShape::has_plain_scores).
    pub(super) has_plain_scores: bool,
}

impl MixerShape {
    fn of(mixer: &Mixer, causal: bool, keys: Option<KeyRotary>) -> Self {
        Self { state: LayerState::of(mixer, causal), keys, has_plain_scores: mixer.has_plain_scores() }
    }
}

/// The states of the layers so far.
pub(super) struct StateShapes<'a> {
    blueprint: &'a Blueprint,
    /// Indexes of the stage's layers.
    layers: Range<usize>,
    of_mixers: Vec<MixerShape>,
    /// The states behind those of all mixers.
    further: Vec<MixerShape>,
}

impl<'a> StateShapes<'a> {
    pub(super) fn new(blueprint: &'a Blueprint, layers: Range<usize>) -> Self {
        Self { blueprint, layers, of_mixers: Vec::new(), further: Vec::new() }
    }

    /// Adds the states of the next layer, whose mixer rotates its keys by `keys`.
    pub(super) fn add(&mut self, index: usize, keys: Option<KeyRotary>) -> LayerPlace {
        let (blueprint, layer) = (self.blueprint, &self.blueprint.layers[index]);
        self.of_mixers.push(MixerShape::of(&layer.mixer, blueprint.causal, keys));
        LayerPlace {
            mixer: MixerPlace {
                layer: index - self.layers.start,
                states: source_of(blueprint, index) - self.layers.start,
                indexer: layer.mixer.block_indexer().map(|own| self.indexer(own)),
                entries: self.compressions(&layer.mixer),
            },
            second_states: layer.second_mixer.as_ref().map(|second| {
                let shape = MixerShape::of(&second.mixer, blueprint.causal, None);
                self.further(shape)
            }),
            ngram_states: layer.ngrams.as_deref().map(|own| {
                let state = blueprint.state_of_ngrams(own);
                self.further(MixerShape { state, keys: None, has_plain_scores: true })
            }),
        }
    }

    /// Returns all states, in the order of the places.
    pub(super) fn all(self) -> Vec<MixerShape> {
        let Self { mut of_mixers, further, .. } = self;
        of_mixers.extend(further);
        of_mixers
    }

    fn indexer(&mut self, own: &BlockIndexer) -> IndexerStates {
        // Devices have no kernels for indexers.
        let shape = |state| MixerShape { state, keys: None, has_plain_scores: false };
        let (keys, means) = LayerState::of_indexer(own);
        let keys = self.further(shape(keys));
        IndexerStates { keys, means: means.map(|means| self.further(shape(means))) }
    }

    fn compressions(&mut self, mixer: &Mixer) -> [Option<EntryStates>; 2] {
        let mut all = mixer.compressions().map(|(own, width)| {
            // Devices have no kernels for entries.
            let shape = |state| MixerShape { state, keys: None, has_plain_scores: false };
            let [entries, past] = LayerState::of_compression(own, width).map(|state| self.further(shape(state)));
            EntryStates { entries, past }
        });
        [all.next(), all.next()]
    }

    fn further(&mut self, shape: MixerShape) -> usize {
        self.further.push(shape);
        self.layers.len() + self.further.len() - 1
    }
}

/// Returns the index of the layer whose states a layer uses.
fn source_of(blueprint: &Blueprint, index: usize) -> usize {
    match &blueprint.layers[index].mixer {
        Mixer::Attention(attention) => attention.reads_layer.map_or(index, |source| source as usize),
        _ => index,
    }
}
