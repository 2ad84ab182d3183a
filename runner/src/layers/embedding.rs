//! Token embeddings: rows of a mapped matrix, expanded when they are needed.

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};

use crate::kernels;
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
        let (rows, columns) = (self.weight.shape[0], self.weight.shape[1]);
        let bytes = self.weight.bytes();
        let row_bytes = bytes.len() / rows;
        let mut out = vec![0.0; ids.len() * columns];
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(columns)) {
            let at = *id as usize * row_bytes;
            let row = bytes.get(at..at + row_bytes);
            let row = row.with_context(|| format!("token {id} is not in the vocabulary of {rows}"))?;
            kernels::dequantize(self.weight.kind, row, out);
        }
        Ok(Tensor::from_vec(out, (ids.len(), columns), &self.device)?)
    }
}
