//! Token embeddings: rows of a mapped matrix, expanded when they are needed.

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};

use crate::mapped::MappedTensor;

/// A token embedding `[vocabulary, hidden]`.
#[derive(Debug)]
pub(crate) struct Embedding {
    weight: MappedTensor,
    device: Device,
}

impl Embedding {
    pub(crate) fn new(weight: MappedTensor, device: Device) -> Self {
        Self { weight, device }
    }

    /// Token ids to `[tokens, hidden]`, float32.
    pub(crate) fn forward(&self, ids: &[u32]) -> Result<Tensor> {
        let weight = self.weight.weight();
        let (rows, columns) = (weight.rows(), weight.columns());
        let mut out = vec![0.0; ids.len() * columns];
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(columns)) {
            let row = *id as usize;
            ensure!(row < rows, "token {id} is not in the vocabulary of {rows}");
            weight.decode_row(row, out);
        }
        Ok(Tensor::from_vec(out, (ids.len(), columns), &self.device)?)
    }
}
