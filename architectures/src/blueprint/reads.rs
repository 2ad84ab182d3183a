//! Tensors that a decoder reads.

use std::collections::HashSet;

use super::check::{names_of, names_of_every_token, names_of_tower};
use super::{Blueprint, Positions, Tensor};

/// Names of the tensors that a decoder reads. The model may have more tensors, for instance of a
/// vision tower, or buffers.
#[derive(Clone, Debug)]
pub struct Reads {
    all: HashSet<String>,
    /// Those whose numbers are indexes.
    indexes: HashSet<String>,
}

impl Blueprint {
    /// Returns the names of the blueprint's tensors.
    pub fn reads(&self) -> Reads {
        let indexes = self.expert_tables().map(|table| table.name.clone()).collect();
        Reads { all: names_of(self).map(str::to_owned).collect(), indexes }
    }

    /// Returns the names of tensors that every token reads completely, in the order of layers.
    /// Tables of which a token reads one row, and experts, are not among them.
    pub fn read_by_every_token(&self) -> impl Iterator<Item = &str> {
        names_of_every_token(self)
    }

    /// Returns the names of the tensors of the tower, if the model sees pictures.
    pub fn read_by_tower(&self) -> impl Iterator<Item = &str> {
        names_of_tower(self)
    }

    /// Returns the tables of layers: of n-grams, and of the experts of tokens. A token reads a few
    /// of their rows, so they stay in mapped files, also if the layers are on a GPU.
    pub fn layer_tables(&self) -> impl Iterator<Item = &Tensor> {
        let ngrams = self.layers.iter().filter_map(|layer| layer.ngrams.as_ref());
        ngrams.flat_map(|own| &own.embedding.tables).chain(self.expert_tables())
    }

    /// Returns the tables with the indexes of the experts of each token.
    fn expert_tables(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().filter_map(|layer| Some(layer.experts_of_tokens()?.0))
    }

    /// Returns all tables of which a token reads a few rows.
    pub fn row_tables(&self) -> impl Iterator<Item = &Tensor> {
        let embedding = &self.embedding;
        let of_layers = embedding.of_layers.as_ref().and_then(|own| own.table.as_ref()).map(|table| &table.weight);
        let positions = embedding.positions.as_ref().and_then(Positions::learned);
        std::iter::once(&embedding.weight).chain(positions).chain(of_layers).chain(self.layer_tables())
    }
}

impl Reads {
    /// True if the decoder reads the tensor as numbers that it computes with, and not as indexes.
    pub fn has_numbers(&self, name: &str) -> bool {
        self.has(name) && !self.indexes.contains(name)
    }

    /// True if the decoder reads some tensor of the same layer. The layer is the part of the name
    /// up to the first number.
    pub fn has_layer_of(&self, name: &str) -> bool {
        layer_of(name).is_some_and(|layer| self.all.iter().any(|own| own.starts_with(layer)))
    }

    /// True if the decoder reads the tensor. Experts and heads share one name, with `{}` for the
    /// index.
    pub fn has(&self, name: &str) -> bool {
        if self.all.contains(name) {
            return true;
        }
        let parts: Vec<&str> = name.split('.').collect();
        let numbers = (0..parts.len()).filter(|at| parts[*at].bytes().all(|byte| byte.is_ascii_digit()));
        numbers.into_iter().any(|at| {
            let mut parts = parts.clone();
            parts[at] = "{}";
            self.all.contains(&parts.join("."))
        })
    }
}

/// Returns `model.layers.3.` of `model.layers.3.mlp.up_proj.weight`.
fn layer_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split_inclusive('.') {
        end += part.len();
        if part.strip_suffix('.').is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty())
        {
            return Some(&name[..end]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::{Document, TensorNames, describe};

    #[test]
    fn experts_are_read_and_towers_are_not() {
        let raw = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "num_local_experts": 4}"#;
        let found = describe(Document::Config(raw.as_bytes()), &TensorNames::default()).expect("it is read");
        let reads = found.blueprint.reads();
        for (name, is_read) in [
            ("model.layers.1.block_sparse_moe.experts.3.w2.weight", true),
            ("model.layers.1.self_attn.q_proj.weight", true),
            ("model.embed_tokens.weight", true),
            ("model.layers.2.self_attn.q_proj.weight", false),
            ("vision_tower.layers.1.self_attn.q_proj.weight", false),
            ("model.layers.1.self_attn.rotary_emb.inv_freq", false),
        ] {
            assert_eq!(reads.has(name), is_read, "{name}");
        }
    }
}
