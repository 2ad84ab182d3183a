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

    /// Writes the embeddings of the last of these tokens.
    pub(super) fn fill(&self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        let mut rest = out;
        for (own, tables) in &self.0 {
            for row in own.rows_of(|back| tokens.len().checked_sub(back + 1).map(|at| tokens[at])) {
                let (out, behind) = rest.split_at_mut(own.width as usize);
                decode(tables, row as usize, out)?;
                rest = behind;
            }
        }
        Ok(())
    }
}

/// Decodes a row of tensors whose rows follow each other.
fn decode(tables: &[MappedTensor], mut row: usize, out: &mut [f32]) -> Result<()> {
    for table in tables {
        let weight = table.weight();
        if row < weight.rows() {
            weight.decode_row(row, out);
            return Ok(());
        }
        row -= weight.rows();
    }
    None.context("invariant: the tables have all rows")
}
