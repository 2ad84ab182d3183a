//! The decoder: the embedding, and the stages that compute the layers, built from a blueprint.
//!
//! ```text
//! ids ──▶ embedding ──▶ stage ──▶ … ──▶ last stage ──▶ logits
//! ```
//!
//! For the ids of pictures, rows that the tower computed take the place of embeddings.
//!
//! Rows of activations pass from one stage to the next through host memory. Most models have one
//! stage; there are several if a load plan assigns layers to several devices.

mod embedding;
mod head;
mod layer;
mod layer_backends;
mod layer_embeddings;
mod layer_stage;
mod ngram_tables;
mod open_sequence;
mod rotary_table;
mod sequence_ids;
mod stage;
mod state_shapes;
mod token_history;
mod token_rows;
mod tower;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use architectures::{Blueprint, PictureInput, Switch};
use pictures::{Patches, PictureParts};

use crate::backend::{Selection, Sequence, TokenPosition};
use crate::heartbeat::Heartbeat;
use crate::joined_lines::JoinedLines;
use crate::picture_rows::{self, EncodedPicture, PictureRows, end_of_cut_picture, is_row};
use crate::weights::Weights;
use embedding::{Embedding, TokenPlace};
pub(crate) use layer_backends::{DeviceBackend, LayerBackends};
use layer_stage::{LayerStage, StageSource};
pub(crate) use open_sequence::OpenSequence;
use sequence_ids::SequenceIds;
use stage::{DeepRows, PassTokens, Stage};
pub(crate) use stage::{Logits, Removal, TakeLogits, TakeRow};
use tower::{PictureEncoder, Tower};

/// A decoder with its weights.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of the model")]
pub(crate) struct Decoder {
    embedding: Embedding,
    stages: Vec<Box<dyn Stage>>,
    sequence_ids: SequenceIds,
    /// Whether the model computes logits.
    generates: bool,
    causal: bool,
    /// Rule that selects one of two sets of rotary frequencies for a sequence.
    switch: Option<Switch>,
    /// Computes the rows of pictures, or the reason why the tower cannot be loaded; `None` if the
    /// model has none.
    tower: Option<Result<Box<dyn PictureEncoder>, String>>,
    /// Whether the rows of a picture have positions by row and column.
    has_axes: bool,
    /// Whether the rows of a picture see each other. They are then computed in one pass, without
    /// other tokens of their sequence.
    has_bidirectional_pictures: bool,
    /// Buffers of a pass.
    buffers: Mutex<Buffers>,
    heartbeat: Heartbeat,
}

/// Buffers of a pass, reused by the next pass.
#[derive(Debug, Default)]
struct Buffers {
    places: Vec<TokenPlace>,
    positions: Vec<TokenPosition>,
    long: Vec<bool>,
    /// Rows between two stages, `[tokens, hidden]`.
    rows: Vec<f32>,
    deep: DeepRows,
}

impl Decoder {
    /// Loads the embedding and the layers on their backends.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has another shape, a device has no memory, or an adapter
    /// changes a weight that no layer uses.
    pub(crate) fn load(backends: &LayerBackends, weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let heartbeat = Heartbeat::default();
        let ranges: Vec<_> = backends.ranges(blueprint.layers.len()).collect();
        ensure!(ranges.iter().all(|(layers, _)| layers.start <= layers.end), "invariant: backends are of this model");
        let mut stages: Vec<Box<dyn Stage>> = Vec::with_capacity(ranges.len());
        for (at, (layers, backend)) in ranges.iter().enumerate() {
            let (layers, is_last) = (layers.clone(), at + 1 == ranges.len());
            let source = StageSource { weights, blueprint, layers, is_last, heartbeat: &heartbeat };
            stages.push(match backend {
                DeviceBackend::Cpu(cpu) => Box::new(LayerStage::load(cpu, &source)?),
                DeviceBackend::Candle(candle) => Box::new(LayerStage::load(&**candle, &source)?),
            });
        }
        let tower = blueprint.tower().map(|own| -> Result<Box<dyn PictureEncoder>> {
            let (_, backend) = ranges.last().context("invariant: a decoder has a stage")?;
            Ok(match backend {
                DeviceBackend::Cpu(cpu) => Box::new(Tower::load(cpu, weights, own, &heartbeat)?),
                DeviceBackend::Candle(candle) => Box::new(Tower::load(&**candle, weights, own, &heartbeat)?),
            })
        });
        // Without its tower, the model still generates text.
        let tower = tower.map(|tower| tower.map_err(|error| format!("{error:#}")));
        let decoder = Self {
            tower,
            has_bidirectional_pictures: blueprint.tower().is_some_and(|tower| tower.is_bidirectional),
            has_axes: blueprint
                .attentions()
                .any(|attention| attention.rope.as_ref().is_some_and(|rope| rope.axes.is_some())),
            embedding: Embedding::load(weights, blueprint)?,
            stages,
            sequence_ids: SequenceIds::default(),
            generates: blueprint.output.is_some(),
            causal: blueprint.causal,
            switch: rotary_table::switch(blueprint)?,
            buffers: Mutex::default(),
            heartbeat,
        };
        weights.check_adapters()?;
        Ok(decoder)
    }

    /// Returns the number of passes that were replayed from a recording.
    #[cfg(test)]
    pub(crate) fn replays(&self) -> u64 {
        self.stages.iter().map(|stage| stage.replays()).sum()
    }

    /// Returns the heartbeat, which advances with each layer.
    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Whether the model computes logits.
    pub(crate) fn generates(&self) -> bool {
        self.generates
    }

    /// Returns the rule that selects one of two sets of rotary frequencies for a sequence. States
    /// that were computed with one set are useless with the other.
    pub(crate) fn switch(&self) -> Option<Switch> {
        self.switch
    }

    /// Returns how many of `tokens` one pass may append at most to a sequence of `length`.
    pub(crate) fn chunk(&self, length: usize, tokens: usize) -> usize {
        // Tokens that attend to later ones are computed in one pass.
        if !self.causal {
            return tokens;
        }
        self.stages.iter().map(|stage| stage.chunk(length, tokens)).min().unwrap_or(tokens)
    }

    /// Whether the rows of a picture see each other.
    pub(crate) fn has_bidirectional_pictures(&self) -> bool {
        self.has_bidirectional_pictures
    }

    /// Returns how many of the tokens one pass appends to a sequence of `length`, at most `most` of
    /// them: all rows of a picture, or none, if they see each other.
    pub(crate) fn run(&self, ids: &[u32], length: usize, most: usize) -> usize {
        let is_first_row = ids.first().is_some_and(|id| is_row(*id));
        if self.has_bidirectional_pictures && is_first_row && most > 0 {
            return end_of_cut_picture(ids, 1);
        }
        let run = self.chunk(length, most);
        let rows = ids[..run.min(ids.len())].iter().position(|id| self.has_bidirectional_pictures && is_row(*id));
        rows.unwrap_or(run)
    }

    /// Whether a text must be computed in one pass, because its tokens attend to later ones.
    pub(crate) fn sees_whole_texts(&self) -> bool {
        !self.causal
    }

    /// Computes the rows of a picture. Only for models that see pictures.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(crate) fn encode(&self, parts: &PictureParts, input: &PictureInput) -> Result<EncodedPicture> {
        let Some(Ok(tower)) = &self.tower else { bail!("invariant: the model sees pictures") };
        let mut encoded = EncodedPicture::default();
        for part in &parts.parts {
            encoded.append(&tower.encode(&Patches::of(part, input))?);
        }
        if let Some(line_end) = tower.line_end() {
            let side = parts.part_width() / (input.patch * input.block) as usize;
            encoded.rows = JoinedLines::of(parts, side).joined(&encoded.rows, line_end);
        }
        Ok(encoded)
    }

    /// Returns the reason why the model's tower cannot be loaded, if it cannot.
    pub(crate) fn no_pictures_reason(&self) -> Option<&str> {
        self.tower.as_ref().and_then(|tower| tower.as_ref().err()).map(String::as_str)
    }

    /// Whether the rows of a picture take fewer positions than there are rows.
    pub(crate) fn has_axes(&self) -> bool {
        self.has_axes
    }

    /// Appends tokens to open sequences, all in one pass. `ids` are the tokens of all sequences,
    /// one sequence after the other; `pictures` has all pictures with rows among them. The results
    /// are kept until the next pass, or until [`forget`](Self::forget).
    ///
    /// # Errors
    /// Fails if a token is not in the vocabulary, or there is no memory. The states are then valid
    /// only for the tokens from before the pass, and there are no results.
    pub(crate) fn forward(&self, ids: &[u32], sequences: &[Sequence], pictures: &[PictureRows]) -> Result<()> {
        // This pass can use the memory of the last one's rows, and a failed pass leaves no results.
        self.forget();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { places, positions, long, rows, deep } = &mut *buffers;
        places.clear();
        positions.clear();
        long.clear();
        for sequence in sequences {
            let span = sequence.span;
            let own = ids.get(span.first..span.first + span.tokens).unwrap_or_default();
            self.add_positions(own, sequence, pictures, positions);
            let second = sequence.second.unwrap_or(usize::MAX);
            let place = |index| TokenPlace {
                sequence: sequence.id,
                position: span.position + index,
                of_second: index >= second,
            };
            places.extend((0..span.tokens).map(place));
            long.extend(std::iter::repeat_n(sequence.long, span.tokens));
        }
        ensure!(positions.len() == ids.len(), "invariant: a sequence has all of its tokens");
        if let Some(history) = self.embedding.history() {
            history.append(ids, sequences)?;
        }
        deep.fill(ids, pictures);
        let tokens = PassTokens { positions, long, sequences, deep };
        let (first, rest) = self.stages.split_first().context("invariant: a decoder has a stage")?;
        first.forward(tokens, &mut |rows| self.embedding.fill((ids, pictures), places, rows))?;
        let mut before = first;
        for stage in rest {
            rows.clear();
            before.read(&mut |row| {
                rows.extend_from_slice(row);
                Ok(())
            })?;
            stage.forward(tokens, &mut |out| {
                out.copy_from_slice(rows);
                Ok(())
            })?;
            before = stage;
        }
        Ok(())
    }

    /// Appends the positions of a sequence's tokens. If rows of pictures have positions by row and
    /// column, a picture takes as many positions as its longer side has rows.
    fn add_positions(
        &self,
        ids: &[u32],
        sequence: &Sequence,
        pictures: &[PictureRows],
        positions: &mut Vec<TokenPosition>,
    ) {
        let mut saved = sequence.saved;
        for (index, id) in (sequence.span.position..).zip(ids) {
            let found = if self.has_axes && is_row(*id) { picture_rows::find(pictures, *id) } else { None };
            let Some((picture, row)) = found else {
                positions.push(TokenPosition::of_text(index - saved));
                continue;
            };
            let (grid, begin) = (picture.grid, index - row - saved);
            let (line, column) = (row / grid.columns, row % grid.columns);
            positions.push(TokenPosition { time: begin, row: begin + line, column: begin + column });
            if row + 1 == grid.count() {
                saved += grid.saved();
            }
        }
    }

    /// Drops the results of the last pass.
    pub(crate) fn forget(&self) {
        self.stages.iter().for_each(|stage| stage.forget());
    }

    fn last(&self) -> Result<&dyn Stage> {
        Ok(&**self.stages.last().context("invariant: a decoder has a stage")?)
    }

    /// Calls `take` with the logits after some tokens of the last pass, `[vocabulary]`, in order.
    ///
    /// # Errors
    /// Fails if the model computes no logits, there is no result, or there is no memory.
    pub(crate) fn logits(&self, tokens: &[usize], take: &mut TakeRow<'_>) -> Result<()> {
        self.last()?.logits(tokens, take)
    }

    /// Whether the last stage can find the best candidates of logits without copying the logits to
    /// the host.
    pub(crate) fn selects(&self) -> bool {
        self.stages.last().is_some_and(|stage| stage.selects())
    }

    /// Calls `take` for every entry of `wanted`, with its index and the logits after its token of
    /// the last pass: the best candidates if there is a selection, else the row, `[vocabulary]`.
    /// Rows come in the order of their indexes; candidates may come before rows of lower indexes.
    /// Only for a decoder that [selects](Self::selects).
    ///
    /// # Errors
    /// See [`logits`](Self::logits).
    pub(crate) fn best(&self, wanted: &[(usize, Option<Selection>)], take: &mut TakeLogits<'_>) -> Result<()> {
        self.last()?.best(wanted, take)
    }

    /// Calls `take` with the hidden states of some tokens of the last pass after the final norm,
    /// `[hidden]`, in order.
    ///
    /// # Errors
    /// Fails if there is no result, or there is no memory.
    pub(crate) fn hidden(&self, tokens: Range<usize>, take: &mut TakeRow<'_>) -> Result<()> {
        self.last()?.hidden(tokens, take)
    }

    /// Applies the layers behind pooling to the pooled hidden states of a text. Without such
    /// layers, the result is `pooled`.
    ///
    /// # Errors
    /// Fails if `pooled` does not have as many elements as the first layer takes, or the device
    /// fails.
    pub(crate) fn embed(&self, pooled: Vec<f32>) -> Result<Vec<f32>> {
        self.last()?.embed(pooled)
    }
}
