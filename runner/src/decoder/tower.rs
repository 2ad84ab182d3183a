//! The tower: computes the rows that stand for a picture from its patches.
//!
//! ```text
//! patches ─▶ projection ─▶ + positions ─▶ layers ─▶ projector ─▶ rows
//!                                           └─────▶ deep projectors ─▶ deep rows
//! ```

mod patch_positions;
mod projector;

use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use architectures::LayerState;
use pictures::{Patches, patch_places};
use protocol::KvType;

use super::layer::{Layer, LayerPlace};
use super::rotary_table::{LayerTables, RotaryTable};
use super::stage::{DeepRows, PassTokens};
use crate::backend::{
    Activations, Backend, Map, NormOf, PassExecution, PassParts, Sequence, SequenceId, Span, StageSequences,
    StateShape, StatesBySequence, TokenPosition,
};
use crate::heartbeat::Heartbeat;
use crate::layers::{LayerAngles, LayerTokens, Loader, MixerPlace, Pass};
use crate::picture_rows::EncodedPicture;
use crate::weights::Weights;
use patch_positions::PatchPositions;
use projector::Projector;

/// Computes the rows of pictures.
pub(crate) trait PictureEncoder: Debug + Send + Sync {
    /// Computes the rows of a picture, or of a part of one.
    ///
    /// # Errors
    /// Fails if there is no memory.
    fn encode(&self, patches: &Patches) -> Result<EncodedPicture>;
}

/// A tower on one backend.
#[derive(Debug)]
pub(super) struct Tower<B: Backend> {
    backend: B,
    /// Number of numbers of a patch.
    patch: usize,
    /// Patches of each side of a block.
    block: usize,
    /// Projections of patches, whose results are added.
    patches: Vec<B::Matrix>,
    positions: Option<PatchPositions>,
    norm: Option<NormOf<B>>,
    layers: Vec<Layer<B>>,
    rotary_tables: Vec<RotaryTable>,
    projector: Projector<B>,
    /// Projectors of the stream after some layers, each with the index of its layer.
    deep: Vec<(usize, Projector<B>)>,
    heartbeat: Heartbeat,
    execution: B::Execution,
}

/// The only sequence of a tower: the patches of a picture.
const SEQUENCE: usize = 0;
/// Layers keep no states, so all of them use the same one.
const PLACE: MixerPlace = MixerPlace { layer: 0, states: 0, indexer: None, entries: [None; 2] };

impl<B: Backend> Tower<B> {
    pub(super) fn load(
        backend: &B,
        weights: &Weights,
        own: &architectures::Tower,
        heartbeat: &Heartbeat,
    ) -> Result<Self> {
        let (hidden, patch) = (own.hidden as usize, own.input.patch_width() as usize);
        let mut rotary_tables = Vec::new();
        let layer = |layer: &architectures::Layer| {
            let LayerTables { keys, growth, .. } = RotaryTable::of(weights, &layer.mixer, &mut rotary_tables)?;
            let keys = keys.map(|keys| keys.table);
            let angles = LayerAngles { keys, growth, indexer: None, entries: None, outputs: None };
            let loader = Loader { backend, weights, hidden, angles, token_input: 0, streams: None };
            Layer::load(&loader, layer, false)
        };
        let layers = own.layers.iter().map(layer).collect::<Result<_>>()?;
        let projector = |projector| Projector::load(backend, weights, projector, own);
        Ok(Self {
            patch,
            block: own.input.block as usize,
            patches: own
                .patches
                .iter()
                .map(|own| weights.matrix(backend, own, patch, hidden, None))
                .collect::<Result<_>>()?,
            positions: own
                .positions
                .as_ref()
                .map(|positions| PatchPositions::load(weights, positions, hidden))
                .transpose()?,
            norm: own.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            layers,
            rotary_tables,
            projector: projector(&own.projector)?,
            deep: own
                .deep
                .iter()
                .map(|deep| Ok((deep.layer as usize, projector(&deep.projector)?)))
                .collect::<Result<_>>()?,
            heartbeat: heartbeat.clone(),
            execution: B::Execution::default(),
            backend: backend.clone(),
        })
    }

    /// Projects patches to the stream, adds their positions, and normalizes the sum.
    fn stream(&self, patches: &Patches, places: &[[usize; 2]]) -> Result<B::Act> {
        let backend = &self.backend;
        let rows = backend.rows(places.len(), self.patch, |rows| {
            rows.copy_from_slice(&patches.numbers);
            Ok(())
        })?;
        let (first, others) = self.patches.split_first().context("invariant: a tower has a projection of patches")?;
        let [mut x] = backend.project([first], &rows)?;
        for other in others {
            let [own] = backend.project([other], &rows)?;
            x = backend.map(x, Map::Add(&own, 1.0))?;
        }
        if let Some(positions) = &self.positions {
            let sides = [patches.rows, patches.columns];
            let own = backend.rows(places.len(), positions.width(), |rows| {
                positions.fill(places, sides, rows);
                Ok(())
            })?;
            x = backend.map(x, Map::Add(&own, 1.0))?;
        }
        if let Some(norm) = &self.norm {
            x = backend.norm(norm, &x)?;
        }
        Ok(x)
    }
}

impl<B: Backend> PictureEncoder for Tower<B> {
    fn encode(&self, patches: &Patches) -> Result<EncodedPicture> {
        let backend = &self.backend;
        let places: Vec<[usize; 2]> = patch_places(patches.rows, patches.columns, self.block).collect();
        let count = places.len();
        ensure!(count * self.patch == patches.numbers.len(), "invariant: patches are those of the tower");
        let positions: Vec<TokenPosition> =
            places.iter().map(|[row, column]| TokenPosition { time: 0, row: *row, column: *column }).collect();
        let long = vec![false; count];
        // The patches are computed as those of a prompt, whose tokens are computed together.
        let span = Span { first: 0, position: 0, tokens: count, is_prompt: true, is_bidirectional: false };
        let id = SequenceId::new(SEQUENCE);
        let sequences = [Sequence { id, span, long: false, second: None, saved: 0 }];
        let shape =
            StateShape { state: LayerState::Nothing, has_plain_scores: true, context: count, kv_type: KvType::F32 };
        let mut states = StatesBySequence::new();
        states.insert(id, backend.state(shape)?);
        let nothing = DeepRows::default();
        let tokens = PassTokens { positions: &positions, long: &long, sequences: &sequences, deep: &nothing };
        let mut deep = Vec::with_capacity(self.deep.len());
        let inputs = &mut |angles: &mut Vec<B::Angles>| {
            angles.clear();
            for table in &self.rotary_tables {
                angles.push(backend.angles(&table.angles(&tokens))?);
            }
            self.stream(patches, &places)
        };
        let layers = &mut |angles: &[B::Angles], mut x: B::Act, sequences: &mut StageSequences<'_, B>| {
            let pass = Pass { backend, angles };
            let place = LayerPlace { mixer: PLACE, second_states: None, ngram_states: None };
            let mut projectors = self.deep.iter().peekable();
            for (index, layer) in self.layers.iter().enumerate() {
                self.heartbeat.beat();
                x = layer.forward(&pass, x, &LayerTokens { count, own: None }, (&mut *sequences, place))?;
                if let Some((_, projector)) = projectors.next_if(|(layer, _)| *layer == index) {
                    deep.push(projector.project(backend, &x)?);
                }
            }
            Ok(x)
        };
        let mut states = [states];
        let mut sequences = StageSequences { sequences: &sequences, layers: &mut states };
        let parts = PassParts { inputs, layers };
        let x = self.execution.compute(backend, &mut Vec::new(), &mut sequences, parts)?;
        Ok(EncodedPicture { rows: self.projector.project(backend, &x)?, deep })
    }
}

/// Returns all numbers of rows.
fn numbers<B: Backend>(backend: &B, x: &B::Act) -> Result<Vec<f32>> {
    let mut numbers = Vec::new();
    backend.read(x, 0..x.count(), &mut |row| {
        numbers.extend_from_slice(row);
        Ok(())
    })?;
    Ok(numbers)
}
