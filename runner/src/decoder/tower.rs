//! The tower: computes the rows that stand for a picture from its patches.
//!
//! ```text
//! patches ─▶ projection ─▶ + positions ─▶ layers ─▶ projector ─▶ rows
//!                                           └─────▶ deep projectors ─▶ deep rows
//! ```

mod patch_positions;
mod projector;
mod windows;

use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use architectures::{LayerState, PatchWindows};
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
use windows::WindowOrder;

/// Computes the rows of pictures.
pub(crate) trait PictureEncoder: Debug + Send + Sync {
    /// Computes the rows of a picture, or of a part of one.
    ///
    /// # Errors
    /// Fails if there is no memory.
    fn encode(&self, patches: &Patches) -> Result<EncodedPicture>;

    /// Returns the row at the end of each line, if the rows of tiles are joined to lines.
    fn line_end(&self) -> Option<&[f32]>;
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
    /// A row before those of patches.
    class: Option<Vec<f32>>,
    norm: Option<NormOf<B>>,
    layers: Vec<Layer<B>>,
    windows: Option<PatchWindows>,
    rotary_tables: Vec<RotaryTable>,
    projector: Projector<B>,
    line_end: Option<Vec<f32>>,
    /// Projectors of the stream after some layers, each with the index of its layer.
    deep: Vec<(usize, Projector<B>)>,
    heartbeat: Heartbeat,
    execution: B::Execution,
}

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
            let LayerTables { keys, second, growth, .. } = RotaryTable::of(weights, &layer.mixer, &mut rotary_tables)?;
            let keys = keys.map(|keys| keys.table);
            let angles = LayerAngles { keys, second, growth, indexer: None, entries: None, outputs: None };
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
            class: own.class.as_ref().map(|class| class_row(weights, class, hidden)).transpose()?,
            norm: own.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            layers,
            windows: own.windows.clone(),
            rotary_tables,
            projector: projector(&own.projector)?,
            line_end: own
                .line_end
                .as_ref()
                .map(|row| weights.numbers(row, &[own.projector.width() as usize]))
                .transpose()?,
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

    /// Returns sequences of patches with these lengths, and their states. The patches are computed
    /// as those of a prompt, whose tokens are computed together.
    fn sequences(&self, lengths: &[usize]) -> Result<(Vec<Sequence>, StatesBySequence<B::State>)> {
        let (mut sequences, mut states) = (Vec::with_capacity(lengths.len()), StatesBySequence::new());
        let mut first = 0;
        for (index, tokens) in lengths.iter().copied().enumerate() {
            let id = SequenceId::new(index);
            let span = Span { first, position: 0, tokens, is_prompt: true, is_bidirectional: false };
            sequences.push(Sequence { id, span, long: false, second: None, saved: 0 });
            let shape = StateShape {
                state: LayerState::Nothing,
                has_plain_scores: true,
                context: tokens,
                kv_type: KvType::F32,
            };
            states.insert(id, self.backend.state(shape)?);
            first += tokens;
        }
        Ok((sequences, states))
    }

    /// Projects patches to the stream, adds their positions, and normalizes the sum.
    ///
    /// `places` are their rows and columns; `blocks` are the indexes of the blocks to which they
    /// belong, `None` if they are in the order of the picture.
    fn stream(&self, patches: &Patches, places: &[[usize; 2]], blocks: Option<&[usize]>) -> Result<B::Act> {
        let backend = &self.backend;
        let rows = backend.rows(places.len(), self.patch, |rows| {
            let Some(blocks) = blocks else {
                rows.copy_from_slice(&patches.numbers);
                return Ok(());
            };
            let width = self.joined() * self.patch;
            for (out, block) in rows.chunks_exact_mut(width).zip(blocks) {
                out.copy_from_slice(&patches.numbers[block * width..][..width]);
            }
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
            let own = backend.rows(places.len(), positions.width(), |rows| positions.fill(places, sides, rows))?;
            x = backend.map(x, Map::Add(&own, 1.0))?;
        }
        if let Some(class) = &self.class {
            let of_patches = numbers(backend, &x)?;
            x = backend.rows(places.len() + 1, class.len(), |rows| {
                let (first, rest) = rows.split_at_mut(class.len());
                first.copy_from_slice(class);
                rest.copy_from_slice(&of_patches);
                Ok(())
            })?;
        }
        if let Some(norm) = &self.norm {
            x = backend.norm(norm, &x)?;
        }
        Ok(x)
    }
}

/// The rows that a tower computes of a picture: that of the class, if there is one, then patches.
struct TowerRows {
    /// The blocks in the order of their windows, if there are any.
    order: Option<WindowOrder>,
    /// Row and column of each patch.
    places: Vec<[usize; 2]>,
    positions: Vec<TokenPosition>,
}

impl<B: Backend> Tower<B> {
    fn rows(&self, patches: &Patches) -> Result<TowerRows> {
        let mut places: Vec<[usize; 2]> = patch_places(patches.rows, patches.columns, self.block).collect();
        ensure!(places.len() * self.patch == patches.numbers.len(), "invariant: patches are those of the tower");
        let order = self.windows.as_ref().map(|windows| {
            WindowOrder::of(patches.rows / self.block, patches.columns / self.block, windows.side as usize)
        });
        if let Some(order) = &order {
            let joined = self.joined();
            places = order.blocks.iter().flat_map(|block| &places[block * joined..][..joined]).copied().collect();
        }
        let class = self.class.as_ref().map(|_| TokenPosition::default());
        let of_patches = places.iter().map(|[row, column]| TokenPosition { time: 0, row: *row, column: *column });
        let positions = class.into_iter().chain(of_patches).collect();
        Ok(TowerRows { order, places, positions })
    }

    /// Returns the number of patches of a block.
    fn joined(&self) -> usize {
        self.block * self.block
    }

    /// Computes the layers. Appends the rows of projectors behind some of them to `deep`.
    fn layers(&self, patches: &Patches, own: &TowerRows, deep: &mut Vec<Vec<f32>>) -> Result<B::Act> {
        let backend = &self.backend;
        let count = own.positions.len();
        let long = vec![false; count];
        let (sequences, states) = self.sequences(&[count])?;
        let lengths = own.order.iter().flat_map(|order| &order.lengths);
        let lengths: Vec<usize> = lengths.map(|blocks| blocks * self.joined()).collect();
        let (of_windows, window_states) = self.sequences(&lengths)?;
        let nothing = DeepRows::default();
        let tokens = PassTokens { positions: &own.positions, long: &long, sequences: &sequences, deep: &nothing };
        let inputs = &mut |angles: &mut Vec<B::Angles>| {
            angles.clear();
            for table in &self.rotary_tables {
                angles.push(backend.angles(&table.angles(&tokens))?);
            }
            self.stream(patches, &own.places, own.order.as_ref().map(|order| &order.blocks[..]))
        };
        let mut window_states = [window_states];
        let layers = &mut |angles: &[B::Angles], mut x: B::Act, sequences: &mut StageSequences<'_, B>| {
            let pass = Pass { backend, angles };
            let place = LayerPlace { mixer: PLACE, second_states: None, ngram_states: None };
            let mut projectors = self.deep.iter().peekable();
            for (index, layer) in self.layers.iter().enumerate() {
                self.heartbeat.beat();
                let is_whole = self.windows.as_ref().is_none_or(|windows| windows.whole.contains(&(index as u64)));
                let tokens = LayerTokens { count, own: None };
                x = if is_whole {
                    layer.forward(&pass, x, &tokens, (&mut *sequences, place))?
                } else {
                    let mut own = StageSequences { sequences: &of_windows, layers: &mut window_states };
                    layer.forward(&pass, x, &tokens, (&mut own, place))?
                };
                if let Some((_, projector)) = projectors.next_if(|(layer, _)| *layer == index) {
                    deep.push(projector.project(backend, &x)?);
                }
            }
            Ok(x)
        };
        let mut states = [states];
        let mut sequences = StageSequences { sequences: &sequences, layers: &mut states };
        self.execution.compute(backend, &mut Vec::new(), &mut sequences, PassParts { inputs, layers })
    }
}

impl<B: Backend> PictureEncoder for Tower<B> {
    fn line_end(&self) -> Option<&[f32]> {
        self.line_end.as_deref()
    }

    fn encode(&self, patches: &Patches) -> Result<EncodedPicture> {
        let (backend, own) = (&self.backend, self.rows(patches)?);
        let mut deep = Vec::with_capacity(self.deep.len());
        let mut x = self.layers(patches, &own, &mut deep)?;
        if let Some(class) = &self.class {
            let all = numbers(backend, &x)?;
            x = backend.rows(own.places.len(), class.len(), |rows| {
                rows.copy_from_slice(&all[class.len()..]);
                Ok(())
            })?;
        }
        let mut rows = self.projector.project(backend, &x)?;
        if let Some(order) = &own.order {
            rows = order.restored(&rows);
            deep = deep.iter().map(|rows| order.restored(rows)).collect();
        }
        Ok(EncodedPicture { rows, deep })
    }
}

/// Returns the sum of the row and its position.
fn class_row(weights: &Weights, class: &architectures::ClassRow, hidden: usize) -> Result<Vec<f32>> {
    let mut row = weights.numbers(&class.row, &[hidden])?;
    let position = weights.numbers(&class.position, &[hidden])?;
    row.iter_mut().zip(position).for_each(|(x, position)| *x += position);
    Ok(row)
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
