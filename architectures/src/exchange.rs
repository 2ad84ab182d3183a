//! Changes of tensors between Hugging Face's files and GGUF: names, the order of rows, weights of
//! norms.
//!
//! Sources: `convert_hf_to_gguf.py` of llama.cpp (`permute` of the llama family, Gemma's norms with
//! 1 added, tensors that are always float32), and the inverse of each.

use formats::gguf::OwnedValue;

use crate::family::{Architecture, Fact};
use crate::{Error, HeadLayout, Rope, RopeScaling, Tensor, names};

/// Change of a tensor between two formats.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorChange {
    /// Name in the new file.
    pub name: String,
    /// Order of its rows in the new file.
    pub rows: HeadOrder,
    /// Change of its numbers: `(x + add) · multiply`; `None` if they stay the same.
    pub numbers: Option<NumberChange>,
    /// Whether the tensor must be float32, regardless of the type of other tensors.
    pub float32: bool,
}

/// `(x + add) · multiply`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberChange {
    /// Constant that is added first.
    pub add: f64,
    /// Factor that is applied then.
    pub multiply: f64,
}

/// Reordering of the rows of q and k within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Unchanged.
    Same,
    /// From halves (element `i` is paired with `i + dim/2`) to neighbours (`2i` is paired with
    /// `2i + 1`).
    ToInterleaved {
        /// Number of rows of a head.
        head_dim: u64,
    },
    /// From neighbours to halves.
    ToHalves {
        /// Number of rows of a head.
        head_dim: u64,
    },
}

impl HeadOrder {
    /// Returns the reordering from one layout to another.
    pub fn between(from: HeadLayout, to: HeadLayout, head_dim: u64) -> Self {
        match (from, to) {
            (HeadLayout::Half, HeadLayout::Interleaved) => Self::ToInterleaved { head_dim },
            (HeadLayout::Interleaved, HeadLayout::Half) => Self::ToHalves { head_dim },
            _ => Self::Same,
        }
    }

    /// Returns the row of the source that becomes row `row`. Rows are counted over all heads.
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

fn fail(reason: impl Into<String>) -> Error {
    Error::new("GGUF file to be written", reason)
}

impl Architecture {
    /// Returns the change of a tensor with a canonical name for a GGUF file; `None` if the file
    /// does not have the tensor.
    ///
    /// # Errors
    /// Files of this architecture have no name for the tensor.
    pub fn tensor_to_gguf(&self, name: &str, dimensions: usize) -> Result<Option<TensorChange>, Error> {
        let computed = name.ends_with(".rotary_emb.inv_freq");
        if computed || self.is_spare_output(name) {
            return Ok(None);
        }
        let form = self.family.gguf;
        let new_name = names::gguf(form.architecture, name).ok_or_else(|| {
            fail(format!("`{name}`: GGUF files of the architecture {} have no name for it", form.architecture))
        })?;
        let multiply = if name.ends_with(".q_norm.weight") { self.query_factor() } else { 1.0 };
        let numbers = is_norm(name).then_some(NumberChange { add: self.norm_offset(), multiply });
        Ok(Some(TensorChange {
            float32: dimensions <= 1 || is_norm(name) || new_name.ends_with(".ffn_gate_inp.weight"),
            name: new_name,
            rows: self.order_of(name, form.layout),
            numbers: numbers.filter(|change| *change != NumberChange { add: 0.0, multiply: 1.0 }),
        }))
    }

    /// Returns the change of a tensor with a canonical name for a Hugging Face folder; `None` if
    /// the folder does not have the tensor.
    pub fn tensor_to_hugging_face(&self, name: &str) -> Option<TensorChange> {
        if name == "model.rope_freqs.weight" || self.is_spare_output(name) {
            return None;
        }
        let add = self.norm_offset() - self.family.hugging_face.norm_offset;
        let numbers = is_norm(name).then_some(NumberChange { add, multiply: 1.0 });
        Some(TensorChange {
            name: name.to_owned(),
            rows: self.order_of(name, HeadLayout::Half),
            numbers: numbers.filter(|change| change.add != 0.0),
            float32: false,
        })
    }

    /// Returns the constant that the decoder adds to the weights of norms.
    fn norm_offset(&self) -> f64 {
        self.blueprint.norm.as_ref().map_or(0.0, |norm| norm.offset)
    }

    /// True for an output projection that is stored although the embedding is used.
    fn is_spare_output(&self, name: &str) -> bool {
        name == "lm_head.weight" && self.blueprint.tied()
    }

    /// Returns the reordering of a tensor's rows to a layout; only rows of q and k are reordered.
    fn order_of(&self, name: &str, to: HeadLayout) -> HeadOrder {
        // Rows of projections that are stored in one tensor are not reordered, because no format of
        // such a family uses another order.
        let of = |projection: &crate::Projection| {
            projection.weight == Tensor::named(name) || projection.bias.as_ref().is_some_and(|bias| bias.name == name)
        };
        let rotated = self.blueprint.attentions().find(|attention| of(&attention.query) || of(&attention.key));
        rotated.map_or(HeadOrder::Same, |attention| HeadOrder::between(attention.layout, to, attention.head_dim))
    }

    /// Returns a factor for queries that compensates for a different scaling of scores by readers
    /// of the file. Queries are normalized before `RoPE` is applied, so the weights of that norm
    /// can include the factor.
    fn query_factor(&self) -> f64 {
        let own = self.blueprint.attentions().next().map_or(1.0, |attention| attention.scale);
        let factor = self.family.gguf.attention_scale.map_or(1.0, |theirs| own / theirs(&self.blueprint));
        if (factor - 1.0).abs() < 1e-9 { 1.0 } else { factor }
    }

    /// Returns the keys of the architecture's numbers, with its name as the prefix.
    ///
    /// # Errors
    /// GGUF cannot express a number for the architecture, or a number does not fit its type.
    pub fn gguf_keys(&self) -> Result<Vec<(String, OwnedValue)>, Error> {
        let form = self.family.gguf;
        let own = |key: &str| format!("{}.{key}", form.architecture);
        let mut keys = Vec::new();
        for (key, fact) in self.facts() {
            let value = match fact {
                Fact::Unsigned(number) => u32::try_from(number)
                    .map_err(|_| fail(format!("`{key}` would be {number}, more than 2^32")))?
                    .into(),
                Fact::Float(number) => OwnedValue::from(number as f32),
            };
            keys.push((own(key), value));
        }
        if let Some(RopeScaling::Linear { factor }) = self.rope_scaling() {
            keys.push((own("rope.scaling.type"), "linear".into()));
            keys.push((own("rope.scaling.factor"), (factor as f32).into()));
        }
        let ropes = || self.blueprint.attentions().filter_map(|attention| attention.rope.as_ref());
        if ropes().any(Rope::is_unusual) {
            return Err(fail("this RoPE scaling cannot be written into a GGUF file yet"));
        }
        let has_query_norm = self.blueprint.attentions().all(|attention| attention.query_norm.is_some());
        if (self.query_factor() - 1.0).abs() > f64::EPSILON && !has_query_norm {
            return Err(fail("attention scores are scaled otherwise than readers of the file would do it"));
        }
        let more = (form.keys)(&self.blueprint);
        let more = more.map_err(|reason| fail(format!("{reason} ({})", self.family.name)))?;
        keys.extend(more.into_iter().map(|(key, value)| (own(key), value)));
        Ok(keys)
    }

    /// Returns the frequency scaling of layers with full attention.
    pub fn rope_scaling(&self) -> Option<RopeScaling> {
        let full = self.blueprint.attentions().filter(|attention| attention.window.is_none());
        let rope = full.chain(self.blueprint.attentions()).find_map(|attention| attention.rope.as_ref());
        rope.map(|rope| rope.scaling.clone())
    }
}

/// True for names of norms; only those end with this suffix.
fn is_norm(name: &str) -> bool {
    name.ends_with("norm.weight")
}

#[cfg(test)]
mod tests {
    use formats::Gguf;
    use formats::gguf::{NewTensor, write_header};

    use super::*;
    use crate::{Document, TensorNames, describe};

    fn architecture(config: &str) -> Architecture {
        describe(Document::Config(config.as_bytes()), &TensorNames::default()).expect("a config")
    }

    fn llama() -> Architecture {
        architecture(
            r#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256,"tie_word_embeddings":true}"#,
        )
    }

    fn gemma() -> Architecture {
        architecture(
            r#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256,"head_dim":32,
            "query_pre_attn_scalar":128}"#,
        )
    }

    /// Returns the model as read back from its GGUF file.
    fn returned(architecture: &Architecture) -> Architecture {
        let mut keys = vec![("general.architecture".to_owned(), architecture.family.gguf.architecture.into())];
        keys.extend(architecture.gguf_keys().expect("keys"));
        let embedding = NewTensor {
            name: "token_embd.weight".to_owned(),
            kind: formats::GgmlType::F32,
            dims: vec![architecture.blueprint.hidden, architecture.blueprint.vocabulary],
        };
        let header = write_header(&keys, &[embedding]).expect("a header");
        let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
        describe(Document::Gguf(&gguf), &TensorNames::default()).expect("it is described")
    }

    #[test]
    fn orders_of_rows_are_inverse() {
        let (there, back) = (HeadOrder::ToInterleaved { head_dim: 6 }, HeadOrder::ToHalves { head_dim: 6 });
        let order: Vec<u64> = (0..12).map(|row| there.source(row)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11], "as reshape(heads, 2, 3).swapaxes(1, 2) does");
        assert!((0..12).all(|row| there.source(back.source(row)) == row));
    }

    #[test]
    fn llama_to_gguf() {
        let change = |name: &str, dimensions| llama().tensor_to_gguf(name, dimensions).expect("it has a name");
        let q = change("model.layers.1.self_attn.q_proj.weight", 2).expect("it is written");
        assert_eq!((q.name.as_str(), q.rows), ("blk.1.attn_q.weight", HeadOrder::ToInterleaved { head_dim: 16 }));
        assert!(!q.float32 && q.numbers.is_none());
        let norm = change("model.norm.weight", 1).expect("it is written");
        assert!(norm.float32 && norm.numbers.is_none() && norm.rows == HeadOrder::Same);
        assert_eq!(change("lm_head.weight", 2), None, "it is the embedding");
        assert_eq!(change("model.layers.0.self_attn.rotary_emb.inv_freq", 1), None);
        let error = llama().tensor_to_gguf("model.vision.weight", 2).expect_err("not of this architecture").to_string();
        assert!(error.contains("`model.vision.weight`") && error.contains("llama"), "{error}");
        let already = returned(&llama());
        let q = already.tensor_to_gguf("model.layers.1.self_attn.q_proj.weight", 2).expect("a name").expect("it stays");
        assert_eq!(q.rows, HeadOrder::Same);
        let back = already.tensor_to_hugging_face("model.layers.1.self_attn.k_proj.weight").expect("it is written");
        assert_eq!(back.rows, HeadOrder::ToHalves { head_dim: 16 });
    }

    #[test]
    fn gemma_adds_one_to_norms() {
        let change = |name: &str| gemma().tensor_to_gguf(name, 1).expect("a name").expect("it is written").numbers;
        assert_eq!(change("model.norm.weight"), Some(NumberChange { add: 1.0, multiply: 1.0 }));
        // The model scales scores by 1/sqrt(128), readers of the file by 1/sqrt(32).
        let query = change("model.layers.0.self_attn.q_norm.weight").expect("it changes");
        assert!(query.add.to_bits() == 1.0f64.to_bits() && (query.multiply - 0.5).abs() < 1e-12, "{query:?}");
        let back = returned(&gemma()).tensor_to_hugging_face("model.norm.weight").expect("it is written").numbers;
        assert_eq!(back, Some(NumberChange { add: -1.0, multiply: 1.0 }));
    }
}
