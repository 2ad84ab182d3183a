//! The facts about a model that an estimate needs: some metadata and the sizes of tensors.

use std::collections::BTreeMap;

use crate::amount;

/// A metadata value of a type that an estimate reads. The type matters: a scalar other than
/// [`U32`](Self::U32) counts as absent, as in Ollama.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataValue {
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 32-bit signed integer.
    I32(i32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A list of 32-bit unsigned integers.
    U32s(Vec<u32>),
    /// A list of 32-bit signed integers.
    I32s(Vec<i32>),
}

/// A tensor that a formula may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in GGUF, e.g. `blk.0.attn_qkv.bias`.
    pub name: String,
    /// Dimensions, innermost first, as GGUF lists them.
    pub shape: Vec<u64>,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A model as its GGUF file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// `general.architecture`, or `unknown` if the file has none.
    pub architecture: String,
    /// Metadata with full keys, e.g. `llama.block_count`.
    pub metadata: BTreeMap<String, MetadataValue>,
    /// Number of tokens of the vocabulary: the length of `tokenizer.ggml.tokens`.
    pub vocabulary: u64,
    /// The tensors that formulas read; further tensors have no effect.
    pub tensors: Vec<Tensor>,
}

impl Model {
    /// Returns the tensor with this name.
    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// The bytes of a model's weights by layer. Tensors of vision towers and projectors belong to no
/// layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Bytes of each block. `None` if the file has no tensor of the block, which then has no KV
    /// cache either.
    pub blocks: Vec<Option<u64>>,
    /// Bytes of the norm before the output.
    pub output_norm: Option<u64>,
    /// Bytes of the output projection; `None` if the embedding is the output.
    pub output: Option<u64>,
    /// Bytes of the token embedding.
    pub token_embedding: Option<u64>,
}

impl Weights {
    /// Adds up the sizes of tensors by layer, for a model with this number of blocks.
    pub fn of<'a>(tensors: impl IntoIterator<Item = (&'a str, u64)>, blocks: usize) -> Self {
        let mut weights = Self { blocks: vec![None; blocks], ..Self::default() };
        for (name, bytes) in tensors {
            let (group, rest) = name.split_once('.').unwrap_or((name, ""));
            let sum = match group {
                "blk" => {
                    let index = rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
                    index.and_then(|index| weights.blocks.get_mut(index))
                }
                "output_norm" => Some(&mut weights.output_norm),
                "output" => Some(&mut weights.output),
                "token_embd" => Some(&mut weights.token_embedding),
                _ => None,
            };
            if let Some(sum) = sum {
                *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
            }
        }
        weights
    }

    /// Returns the bytes of the output layer: its norm, and the projection, or the embedding if
    /// there is no projection.
    pub fn output_layer(&self) -> u64 {
        amount::sum([self.output_norm.unwrap_or(0), self.output.or(self.token_embedding).unwrap_or(0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_added_up_by_layer() {
        let tensors = [
            ("token_embd.weight", 100),
            ("blk.0.attn_q.weight", 1),
            ("blk.0.attn_k.weight", 2),
            ("blk.2.attn_q.weight", 4),
            ("blk.9.attn_q.weight", 8),
            ("v.blk.0.attn_q.weight", 16),
            ("output_norm.weight", 32),
        ];
        let weights = Weights::of(tensors, 3);
        assert_eq!(weights.blocks, [Some(3), None, Some(4)]);
        assert_eq!(weights.output_layer(), 132, "the embedding stands in for the output");
        let untied = Weights::of(tensors.into_iter().chain([("output.weight", 64)]), 3);
        assert_eq!(untied.output_layer(), 96);
    }
}
