//! What happens to tensors between Hugging Face's files and GGUF: their names, the order of rows, the weights of norms.
//!
//! Sources: `convert_hf_to_gguf.py` of llama.cpp (`permute` of the llama family, norms of Gemma with 1 added, what is
//! always float32), and the inverse of each.

use super::names;
use crate::hyper::{Architecture, RopeLayout};
use crate::{Error, HyperParameters};

/// What is to be done to a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorChange {
    /// Its name in the new file.
    pub name: String,
    /// In which order its rows are to be written.
    pub rows: RowOrder,
    /// What its numbers are to become: `(x + add) · multiply`, in this order; nothing where they stay.
    pub numbers: Option<NumberChange>,
    /// It is to be float32, whatever the others are.
    pub float32: bool,
}

/// `(x + add) · multiply`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberChange {
    /// Added first.
    pub add: f64,
    /// Multiplied then.
    pub multiply: f64,
}

/// The order of the rows of q and k within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As they are.
    Same,
    /// From halves (element `i` is paired with `i + dim/2`) to neighbours (`2i` with `2i + 1`).
    ToInterleaved {
        /// Rows of a head.
        head_dim: u64,
    },
    /// From neighbours to halves.
    ToHalves {
        /// Rows of a head.
        head_dim: u64,
    },
}

impl RowOrder {
    /// The row of the source that becomes row `row`. Rows are counted over all heads.
    pub fn source(self, row: u64) -> u64 {
        match self {
            Self::Same => row,
            Self::ToInterleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
            Self::ToHalves { head_dim } => {
                let (head, within, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + within % half * 2 + within / half
            }
        }
    }
}

/// What a tensor with a canonical name becomes in a GGUF file; none where the file does not have it.
///
/// # Errors
/// A tensor that files of this architecture have no name for.
pub fn to_gguf(hyper: &HyperParameters, name: &str, dimensions: usize) -> Result<Option<TensorChange>, Error> {
    let computed = name.ends_with(".rotary_emb.inv_freq");
    if computed || (hyper.tied && name == "lm_head.weight") {
        return Ok(None);
    }
    let architecture = hyper.architecture.name();
    let Some(new_name) = names::from_canonical(architecture, name) else {
        let reason = format!("GGUF files of the architecture {architecture} have no name for it");
        return Err(Error::Config { source_name: "tensor for GGUF", reason: format!("`{name}`: {reason}") });
    };
    let numbers = is_norm(name).then(|| NumberChange {
        add: hyper.norm_offset,
        multiply: if name.ends_with(".q_norm.weight") { query_factor(hyper) } else { 1.0 },
    });
    Ok(Some(TensorChange {
        float32: dimensions <= 1 || is_norm(name) || new_name.ends_with(".ffn_gate_inp.weight"),
        name: new_name,
        rows: row_order(name, hyper.rope_layout, layout(hyper.architecture), hyper.head_dim),
        numbers: numbers.filter(|change| *change != NumberChange { add: 0.0, multiply: 1.0 }),
    }))
}

/// What a tensor with a canonical name becomes in a Hugging Face folder; none where the folder does not have it.
pub fn to_hugging_face(hyper: &HyperParameters, name: &str) -> Option<TensorChange> {
    if name == "model.rope_freqs.weight" || (hyper.tied && name == "lm_head.weight") {
        return None;
    }
    let offset = match hyper.architecture {
        Architecture::Llama => 0.0,
        Architecture::Gemma3 => 1.0,
    };
    let numbers = is_norm(name).then_some(NumberChange { add: hyper.norm_offset - offset, multiply: 1.0 });
    Some(TensorChange {
        name: name.to_owned(),
        rows: row_order(name, hyper.rope_layout, RopeLayout::Half, hyper.head_dim),
        numbers: numbers.filter(|change| change.add != 0.0),
        float32: false,
    })
}

/// Names of norms end so, and no others do.
fn is_norm(name: &str) -> bool {
    name.ends_with("norm.weight")
}

/// GGUF has no key for how attention scores are scaled. Queries are normalized before they are rotated, so what a file's
/// readers will scale differently is made up for in the weights of that norm.
fn query_factor(hyper: &HyperParameters) -> f64 {
    let factor = hyper.attention_scale / hyper.gguf_attention_scale();
    if (factor - 1.0).abs() < 1e-9 { 1.0 } else { factor }
}

/// The layout of q and k in GGUF files of an architecture.
pub fn layout(architecture: Architecture) -> RopeLayout {
    match architecture {
        Architecture::Llama => RopeLayout::Interleaved,
        Architecture::Gemma3 => RopeLayout::Half,
    }
}

/// How the rows of a tensor go from one layout to another; only those of q and k do.
pub fn row_order(name: &str, from: RopeLayout, to: RopeLayout, head_dim: u64) -> RowOrder {
    let rotated = [".q_proj.", ".k_proj."].iter().any(|module| name.contains(module));
    match (from, to) {
        (RopeLayout::Half, RopeLayout::Interleaved) if rotated => RowOrder::ToInterleaved { head_dim },
        (RopeLayout::Interleaved, RopeLayout::Half) if rotated => RowOrder::ToHalves { head_dim },
        _ => RowOrder::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> HyperParameters {
        let config = br#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256,"tie_word_embeddings":true}"#;
        HyperParameters::from_config(config).expect("a config")
    }

    fn gemma() -> HyperParameters {
        let config = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256,"head_dim":32,
            "query_pre_attn_scalar":128}"#;
        HyperParameters::from_config(config).expect("a config")
    }

    #[test]
    fn orders_of_rows_are_inverse() {
        let (there, back) = (RowOrder::ToInterleaved { head_dim: 6 }, RowOrder::ToHalves { head_dim: 6 });
        let order: Vec<u64> = (0..12).map(|row| there.source(row)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11], "as reshape(heads, 2, 3).swapaxes(1, 2) does");
        assert!((0..12).all(|row| there.source(back.source(row)) == row));
    }

    #[test]
    fn llama_to_gguf() {
        let change = |name: &str, dimensions| to_gguf(&llama(), name, dimensions).expect("it has a name");
        let q = change("model.layers.1.self_attn.q_proj.weight", 2).expect("it is written");
        assert_eq!((q.name.as_str(), q.rows), ("blk.1.attn_q.weight", RowOrder::ToInterleaved { head_dim: 16 }));
        assert!(!q.float32 && q.numbers.is_none());
        let norm = change("model.norm.weight", 1).expect("it is written");
        assert!(norm.float32 && norm.numbers.is_none() && norm.rows == RowOrder::Same);
        assert_eq!(change("lm_head.weight", 2), None, "it is the embedding");
        assert_eq!(change("model.layers.0.self_attn.rotary_emb.inv_freq", 1), None);
        let error =
            to_gguf(&llama(), "model.vision.weight", 2).expect_err("it is not of this architecture").to_string();
        assert!(error.contains("`model.vision.weight`") && error.contains("llama"), "{error}");
        let already = HyperParameters { rope_layout: RopeLayout::Interleaved, ..llama() };
        let q = to_gguf(&already, "model.layers.1.self_attn.q_proj.weight", 2).expect("a name").expect("it is written");
        assert_eq!(q.rows, RowOrder::Same);
        let back = to_hugging_face(&already, "model.layers.1.self_attn.k_proj.weight").expect("it is written");
        assert_eq!(back.rows, RowOrder::ToHalves { head_dim: 16 });
    }

    #[test]
    fn gemma_adds_one_to_norms() {
        let change = |name: &str| to_gguf(&gemma(), name, 1).expect("a name").expect("it is written").numbers;
        assert_eq!(change("model.norm.weight"), Some(NumberChange { add: 1.0, multiply: 1.0 }));
        // Scores are to be scaled by 1/sqrt(128), readers will by 1/sqrt(32).
        let query = change("model.layers.0.self_attn.q_norm.weight").expect("it changes");
        assert!(query.add.to_bits() == 1.0f64.to_bits() && (query.multiply - 0.5).abs() < 1e-12, "{query:?}");
        let read = HyperParameters { norm_offset: 0.0, ..gemma() };
        let back = to_hugging_face(&read, "model.norm.weight").expect("it is written").numbers;
        assert_eq!(back, Some(NumberChange { add: -1.0, multiply: 1.0 }));
    }
}
