//! The embedding: rows of the residual stream for tokens, by their ids, positions and types.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use architectures::Blueprint;

use super::ngram_tables::NgramTables;
use super::token_history::TokenHistory;
use crate::backend::SequenceId;
use crate::mapped::MappedTensor;
use crate::picture_rows::{self, PictureRows};
use crate::weights::Weights;

#[derive(Debug)]
pub(super) struct Embedding {
    weight: MappedTensor,
    scale: f32,
    positions: Option<Positions>,
    /// The rows of all token types, one after the other.
    types: Option<Vec<f32>>,
    /// The table of the embeddings of layers, and the factor of its rows.
    of_layers: Option<(MappedTensor, f32)>,
    /// The tables of n-grams, and the tokens of all sequences.
    ngrams: Option<(NgramTables, Arc<TokenHistory>)>,
    /// For some layers, the indexes of the experts of each token.
    experts: Vec<MappedTensor>,
    /// Buffer for a row of `positions`.
    scratch: Mutex<Vec<f32>>,
}

/// Position embedding.
#[derive(Debug)]
struct Positions {
    /// Learned rows; `None` if they are [sinusoids].
    learned: Option<MappedTensor>,
    rows: usize,
    /// Row of the first position.
    offset: usize,
}

/// Writes a row of [`architectures::PositionTable::Sinusoids`].
fn sinusoids(row: usize, out: &mut [f32]) {
    let half = out.len() / 2;
    let step = -(10_000f64).ln() / (half.max(2) - 1) as f64;
    let (sines, cosines) = out.split_at_mut(half);
    for (index, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
        let angle = row as f64 * (index as f64 * step).exp();
        (*sine, *cosine) = (angle.sin() as f32, angle.cos() as f32);
    }
}

/// The place of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenPlace {
    pub(super) sequence: SequenceId,
    /// Position in its sequence.
    pub(super) position: usize,
    /// Whether the token belongs to the second of two texts.
    pub(super) of_second: bool,
}

impl Embedding {
    pub(super) fn load(weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let ngrams = NgramTables::load(weights, blueprint)?;
        let (own, hidden) = (&blueprint.embedding, blueprint.hidden as usize);
        let positions = |own: &architectures::Positions| -> Result<Positions> {
            let rows = own.rows as usize;
            let learned = own.learned().map(|table| weights.table(table, rows, hidden)).transpose()?;
            Ok(Positions { learned, rows, offset: own.offset as usize })
        };
        let types = |own: &architectures::TokenTypes| weights.numbers(&own.weight, &[own.count as usize, hidden]);
        let table = own.of_layers.as_ref().and_then(|of_layers| Some((of_layers.width, of_layers.table.as_ref()?)));
        let of_layers = |(width, own): (u64, &architectures::LayerTable)| -> Result<(MappedTensor, f32)> {
            let width = blueprint.layers.len() * width as usize;
            Ok((weights.table(&own.weight, own.rows as usize, width)?, own.scale as f32))
        };
        Ok(Self {
            weight: weights.table(&own.weight, blueprint.vocabulary as usize, hidden)?,
            scale: own.scale.unwrap_or(1.0) as f32,
            positions: own.positions.as_ref().map(positions).transpose()?,
            types: own.types.as_ref().map(types).transpose()?,
            of_layers: table.map(of_layers).transpose()?,
            ngrams: ngrams.map(|tables| (tables, Arc::default())),
            experts: blueprint
                .layers
                .iter()
                .filter_map(architectures::Layer::experts_of_tokens)
                .map(|(table, count)| weights.table(table, blueprint.vocabulary as usize, count as usize))
                .collect::<Result<_>>()?,
            scratch: Mutex::default(),
        })
    }

    /// Returns the tokens of all sequences, if the embedding of a token depends on those before it.
    pub(super) fn history(&self) -> Option<&Arc<TokenHistory>> {
        self.ngrams.as_ref().map(|(_, history)| history)
    }

    /// Writes the rows of tokens, `[tokens, hidden]`, or with the rows of the embeddings of layers
    /// or n-grams, or the experts of layers, behind each. Rows are decoded one by one and exactly,
    /// for every backend. The first stage applies the norm that some models have behind the
    /// embedding.
    ///
    /// Rows of pictures are written as the tower computed them.
    pub(super) fn fill(
        &self,
        (ids, pictures): (&[u32], &[PictureRows]),
        places: &[TokenPlace],
        out: &mut [f32],
    ) -> Result<()> {
        let weight = self.weight.weight();
        let (rows, columns) = (weight.rows(), weight.columns());
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let of_layers = self.of_layers.as_ref().map(|(table, scale)| (table.weight(), *scale));
        let of_ngrams = self.ngrams.as_ref().map_or(0, |(tables, _)| tables.width());
        let of_experts: usize = self.experts.iter().map(|table| table.shape[1]).sum();
        let width = columns + of_layers.map_or(0, |(table, _)| table.columns()) + of_ngrams + of_experts;
        if let Some((tables, history)) = &self.ngrams {
            // The system reads the rows of all tokens while the first ones are decoded.
            history.read(|all| {
                for place in places {
                    tables.read_ahead(&all[place.sequence.index()][..=place.position]);
                }
            });
        }
        for ((id, place), out) in ids.iter().zip(places).zip(out.chunks_exact_mut(width)) {
            if let Some((picture, row)) = picture_rows::find(pictures, *id) {
                let (out, own) = out.split_at_mut(columns);
                out.copy_from_slice(&picture.encoded.rows[row * columns..(row + 1) * columns]);
                let behind = of_layers.map_or(0, |(table, _)| table.columns());
                ensure!(own.len() == behind, "invariant: models that see pictures have no other numbers behind");
                if let Some((table, scale)) = of_layers {
                    // Token 0, which is that of padding, stands for a picture.
                    table.decode_row(0, own);
                    for x in own.iter_mut() {
                        *x *= scale;
                    }
                }
                continue;
            }
            ensure!((*id as usize) < rows, "token {id} is not in the vocabulary of {rows}");
            let (out, own) = out.split_at_mut(columns);
            weight.decode_row(*id as usize, out);
            for x in out.iter_mut() {
                *x *= self.scale;
            }
            self.place(*place, out, &mut scratch)?;
            if let Some((table, scale)) = of_layers {
                let row = if (*id as usize) < table.rows() { *id as usize } else { 0 };
                table.decode_row(row, own);
                for x in own {
                    *x *= scale;
                }
            } else if let Some((tables, history)) = &self.ngrams {
                let tokens = |all: &[Vec<u32>]| tables.fill(&all[place.sequence.index()][..=place.position], own);
                history.read(tokens)?;
            } else {
                let mut rest = own;
                for table in &self.experts {
                    let (row, behind) = rest.split_at_mut(table.shape[1]);
                    table.weight().decode_row(*id as usize, row);
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// Adds the embeddings of the token's position and type.
    fn place(&self, place: TokenPlace, out: &mut [f32], own: &mut Vec<f32>) -> Result<()> {
        let TokenPlace { position, of_second, .. } = place;
        if let Some(Positions { learned, rows, offset }) = &self.positions {
            let row = position + offset;
            ensure!(row < *rows, "position {position} exceeds the model's {rows} positions");
            own.resize(out.len(), 0.0);
            match learned {
                Some(table) => table.weight().decode_row(row, own),
                None => sinusoids(row, own),
            }
            out.iter_mut().zip(own).for_each(|(x, own)| *x += *own);
        }
        if let Some(types) = &self.types {
            // If there is only one type, the second text has it too.
            let mut rows = types.chunks_exact(out.len());
            let (first, second) = (rows.next(), rows.next());
            let row = second.filter(|_| of_second).or(first).unwrap_or_default();
            out.iter_mut().zip(row).for_each(|(x, own)| *x += own);
        }
        Ok(())
    }
}
