//! The tables of n-grams of all layers, see [`architectures::NgramEmbedding`]. Rows are decoded one
//! by one from the mapped files, however large the tables are.

use anyhow::{Context, Result};
use architectures::{Blueprint, NgramEmbedding};

use crate::mapped::MappedTensor;
use crate::weights::Weights;

/// The tables of the layers that have n-grams, in the order of layers.
#[derive(Debug)]
pub(super) struct NgramTables(Vec<(NgramEmbedding, Vec<MappedTensor>)>);

impl NgramTables {
    /// Returns the tables; `None` if the model has none.
    pub(super) fn load(weights: &Weights, blueprint: &Blueprint) -> Result<Option<Self>> {
        let own = blueprint.layers.iter().filter_map(|layer| layer.ngrams.as_ref());
        let load = |own: &NgramEmbedding| -> Result<_> {
            Ok((own.clone(), weights.tables(&own.tables, [own.rows() as usize, own.width as usize])?))
        };
        let all: Vec<_> = own.map(|own| load(&own.embedding)).collect::<Result<_>>()?;
        Ok((!all.is_empty()).then_some(Self(all)))
    }

    /// Returns the number of elements of the embeddings of a token.
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(own, _)| own.embedded() as usize).sum()
    }

    /// Asks the system to read the embeddings of the last of these tokens into memory; does not
    /// wait for them.
    pub(super) fn read_ahead(&self, tokens: &[u32]) {
        for (own, tables) in &self.0 {
            for (table, row) in rows(own, tokens).filter_map(|row| table_of(tables, row as usize)) {
                // Without it, the row is read where it is decoded.
                if let Err(error) = table.read_ahead(row) {
                    tracing::debug!(%error, "rows of n-grams are not read ahead");
                }
            }
        }
    }

    /// Writes the embeddings of the last of these tokens.
    pub(super) fn fill(&self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        let mut rest = out;
        for (own, tables) in &self.0 {
            for row in rows(own, tokens) {
                let (out, behind) = rest.split_at_mut(own.width as usize);
                let place = table_of(tables, row as usize);
                let (table, row) = place.context("invariant: the tables have all rows")?;
                table.weight().decode_row(row, out);
                rest = behind;
            }
        }
        Ok(())
    }
}

/// Returns the rows of the last of these tokens.
fn rows(own: &NgramEmbedding, tokens: &[u32]) -> impl Iterator<Item = u64> {
    own.rows_of(|back| tokens.len().checked_sub(back + 1).map(|at| tokens[at]))
}

/// Returns the tensor that has a row of tensors whose rows follow each other, and its place there.
fn table_of(tables: &[MappedTensor], mut row: usize) -> Option<(&MappedTensor, usize)> {
    for table in tables {
        let rows = table.shape[0];
        if row < rows {
            return Some((table, row));
        }
        row -= rows;
    }
    None
}
