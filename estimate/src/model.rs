//! What an estimate needs to know of a model: some metadata and the sizes of tensors.

use std::collections::BTreeMap;

use crate::amount;

/// A metadata value, as far as an estimate looks at it. The type matters: a scalar that is not [`U32`](Self::U32) is
/// treated as absent, as the field's best-known reader does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataValue {
    /// An unsigned number of 32 bits.
    U32(u32),
    /// A signed number of 32 bits.
    I32(i32),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// A list of unsigned numbers.
    U32s(Vec<u32>),
    /// A list of signed numbers.
    I32s(Vec<i32>),
}

/// A tensor that a formula may look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in GGUF, e.g. `blk.0.attn_qkv.bias`.
    pub name: String,
    /// Dimensions, innermost first, as GGUF lists them.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: u64,
}

/// A model, as GGUF describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// `general.architecture`; `unknown` where a file has none.
    pub architecture: String,
    /// Metadata with full keys, e.g. `llama.block_count`.
    pub metadata: BTreeMap<String, MetadataValue>,
    /// Tokens of the vocabulary: the length of `tokenizer.ggml.tokens`.
    pub vocabulary: u64,
    /// The tensors that formulas look at; others do no harm.
    pub tensors: Vec<Tensor>,
}

impl Model {
    /// The tensor of that name.
    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// The bytes of a model's weights, by the layer that they belong to. Tensors of vision towers and projectors are in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// For each block its bytes; `None` where the file has no tensor of it, which then has no KV cache either.
    pub blocks: Vec<Option<u64>>,
    /// The norm before the output.
    pub output_norm: Option<u64>,
    /// The output projection; `None` where it is the embedding.
    pub output: Option<u64>,
    /// The embedding of tokens.
    pub token_embedding: Option<u64>,
}

impl Weights {
    /// Adds up tensors by name and size, for a model of so many blocks.
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

    /// The bytes of the output layer: its norm, and the projection or the embedding that stands in for it.
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
