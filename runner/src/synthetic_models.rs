//! Models with synthetic weights, defined by a shape and a seed, for tests and measurements on a
//! machine without model files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use architectures::{Blueprint, Document, TensorNames, describe};
use formats::codec::{self, Encoded, EncodingTarget};
use formats::encoding::Role;
use formats::{Dtype, Encoding};
use protocol::{Array, LoadRequest};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::fixtures;
use crate::mapped::Blobs;

/// The architecture of a model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) config: Value,
    /// Names and shapes of its tensors.
    tensors: Vec<(String, Vec<u64>)>,
}

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyntheticSizes {
    pub(crate) hidden: u64,
    pub(crate) width: u64,
    pub(crate) layers: u64,
    pub(crate) heads: u64,
    pub(crate) key_heads: u64,
    pub(crate) vocabulary: u64,
}

/// A model in files, one for each tensor.
#[derive(Debug)]
pub(crate) struct SyntheticModel {
    pub(crate) blueprint: Blueprint,
    pub(crate) plan: LoadRequest,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) blobs: Blobs,
}

/// The contents of tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TensorContents {
    /// Encoded small random numbers from a seed, so that results are meaningful.
    Random(u64),
    /// A repeating pattern of bytes that are small finite numbers in any type. It is written as
    /// fast as the disk allows.
    Repeating,
}

impl Shape {
    /// Returns the shape of a Llama model.
    pub(crate) fn llama(sizes: SyntheticSizes) -> Self {
        let SyntheticSizes { hidden, width, layers, heads, key_heads, vocabulary } = sizes;
        let config = json!({
            "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": width,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_heads,
            "max_position_embeddings": 16_384, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
        });
        let mut tensors = decoder(sizes);
        tensors.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
        for layer in 0..layers {
            tensors.extend(network(&format!("model.layers.{layer}.mlp"), hidden, width));
        }
        Self { config, tensors }
    }

    /// Returns the shape of a Gemma model: Llama's with norms of heads, sliding windows, and the
    /// embedding as output projection.
    pub(crate) fn gemma(sizes: SyntheticSizes) -> Self {
        let mut shape = Self::llama(sizes);
        let head = sizes.hidden / sizes.heads;
        shape.config["model_type"] = json!("gemma3_text");
        for (key, value) in [
            ("head_dim", json!(head)),
            ("sliding_window", json!(24)),
            ("sliding_window_pattern", json!(2)),
            ("query_pre_attn_scalar", json!(head)),
            ("hidden_activation", json!("gelu_pytorch_tanh")),
            ("tie_word_embeddings", json!(true)),
        ] {
            shape.config[key] = value;
        }
        shape.tensors.retain(|(name, _)| name != "lm_head.weight");
        for layer in 0..sizes.layers {
            for (name, width) in [
                ("self_attn.q_norm", head),
                ("self_attn.k_norm", head),
                ("pre_feedforward_layernorm", sizes.hidden),
                ("post_feedforward_layernorm", sizes.hidden),
            ] {
                shape.tensors.push((format!("model.layers.{layer}.{name}.weight"), vec![width]));
            }
        }
        shape
    }

    /// Returns the shape of a Qwen model: Llama's with norms of heads, and eight experts of which
    /// each token uses two.
    pub(crate) fn experts(sizes: SyntheticSizes) -> Self {
        const EXPERTS: u64 = 8;
        let mut shape = Self::llama(sizes);
        let head = sizes.hidden / sizes.heads;
        shape.config["model_type"] = json!("qwen3_moe");
        for (key, value) in [
            ("head_dim", head),
            ("num_experts", EXPERTS),
            ("num_experts_per_tok", 2),
            ("moe_intermediate_size", sizes.width),
            ("decoder_sparse_step", 1),
        ] {
            shape.config[key] = json!(value);
        }
        shape.config["norm_topk_prob"] = json!(true);
        shape.tensors.retain(|(name, _)| !name.contains(".mlp."));
        for layer in 0..sizes.layers {
            let mut own = vec![
                (format!("model.layers.{layer}.self_attn.q_norm.weight"), vec![head]),
                (format!("model.layers.{layer}.self_attn.k_norm.weight"), vec![head]),
                (format!("model.layers.{layer}.mlp.gate.weight"), vec![EXPERTS, sizes.hidden]),
            ];
            for expert in 0..EXPERTS {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}");
                own.extend(network(&name, sizes.hidden, sizes.width));
            }
            shape.tensors.extend(own);
        }
        shape
    }

    /// Writes the model into a folder. `kind` is the type of its matrices, as load plans name it,
    /// and the elements of a group.
    pub(crate) fn make(
        &self,
        name: &str,
        kind: (&str, u64),
        numbers: TensorContents,
        folder: &Path,
    ) -> Result<SyntheticModel> {
        std::fs::create_dir_all(folder)?;
        let (mut tensors, mut paths) = (Vec::new(), Vec::new());
        for (tensor, shape) in &self.tensors {
            let path = folder.join(tensor);
            tensors.push(write(tensor, shape, kind, numbers, (paths.len(), &path))?);
            paths.push(path);
        }
        self.of(name, tensors, paths)
    }

    /// Writes a fine-tune of a model: its matrices have other bytes where `is_changed` returns
    /// true.
    pub(crate) fn tune(
        &self,
        base: &SyntheticModel,
        kind: (&str, u64),
        is_changed: impl Fn(&str) -> bool,
        folder: &Path,
    ) -> Result<SyntheticModel> {
        std::fs::create_dir_all(folder)?;
        let (mut tensors, mut paths) = (base.plan.tensors.clone(), base.paths.clone());
        for (tensor, shape) in self.tensors.iter().filter(|(name, _)| is_changed(name)) {
            let place = tensors.iter().position(|own| own.name == *tensor).context("a tensor of the model")?;
            let path = folder.join(tensor);
            tensors[place] = write(tensor, shape, kind, TensorContents::Repeating, (place, &path))?;
            paths[place] = path;
        }
        self.of("tune", tensors, paths)
    }

    fn of(&self, name: &str, tensors: Vec<protocol::Tensor>, paths: Vec<PathBuf>) -> Result<SyntheticModel> {
        let names: TensorNames = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let blueprint = describe(Document::Config(self.config.to_string().as_bytes()), &names)?.blueprint;
        let plan = fixtures::plan(name, &blueprint, tensors)?;
        let blobs = Blobs::of_files(&paths)?;
        Ok(SyntheticModel { blueprint, plan, paths, blobs })
    }
}

impl SyntheticModel {
    /// Returns the bytes of a tensor.
    pub(crate) fn bytes_of(&self, name: &str) -> u64 {
        let tensor = self.plan.tensors.iter().find(|tensor| tensor.name == name);
        tensor.map_or(0, |tensor| crate::read_ahead::arrays_of(tensor).map(|array| array.size).sum())
    }
}

/// Returns the names and shapes of all tensors but the networks and the output projection.
fn decoder(sizes: SyntheticSizes) -> Vec<(String, Vec<u64>)> {
    let SyntheticSizes { hidden, layers, heads, key_heads, vocabulary, .. } = sizes;
    let keys = hidden / heads * key_heads;
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    all
}

fn network(name: &str, hidden: u64, width: u64) -> Vec<(String, Vec<u64>)> {
    let matrix = |(part, shape)| (format!("{name}.{part}.weight"), shape);
    [("gate_proj", vec![width, hidden]), ("up_proj", vec![width, hidden]), ("down_proj", vec![hidden, width])]
        .map(matrix)
        .into()
}

/// Writes a tensor to a file, which is blob `blob`; returns its entry in the load plan.
fn write(
    name: &str,
    shape: &[u64],
    (dtype, group): (&str, u64),
    numbers: TensorContents,
    (blob, path): (usize, &Path),
) -> Result<protocol::Tensor> {
    // Embeddings and routers usually have no other type.
    let is_matrix = shape.len() == 2 && name != "model.embed_tokens.weight" && !name.ends_with("mlp.gate.weight");
    let (dtype, group) = if is_matrix { (dtype, group) } else { ("BF16", 0) };
    let encoding = Dtype::parse(dtype).map(Encoding::Plain).or_else(|| Encoding::parse(dtype, group));
    let encoding = encoding.with_context(|| format!("a type of weights, not `{dtype}`"))?;
    let parts = encoding.parts(shape, Dtype::Bf16).map_err(anyhow::Error::msg)?;
    let encoded = match numbers {
        TensorContents::Random(seed) => Some(random(name, shape, encoding, seed)),
        TensorContents::Repeating => None,
    };
    let array = Array { blob, offset: 0, size: 0, dtype: String::new() };
    let mut own = protocol::Tensor {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        group,
        shape: shape.to_vec(),
        weight: array,
        scale: None,
        bias: None,
        global_scale: None,
    };
    let (mut file, mut end) = (BufWriter::new(File::create(path)?), 0);
    for part in parts {
        let array = Array { blob, offset: end, size: part.size(), dtype: part.dtype.to_string() };
        end += part.size();
        match &encoded {
            Some(encoded) => file.write_all(match part.role {
                Role::Weight => &encoded.data,
                Role::Scale => &encoded.scale,
                Role::Bias => &encoded.bias,
                // Encoding without the tensor's largest number gives no global scale.
                Role::GlobalScale => &[],
            })?,
            None => repeat(&mut file, usize::try_from(part.size())?)?,
        }
        match part.role {
            Role::Weight => own.weight = array,
            Role::Scale => own.scale = Some(array),
            Role::Bias => own.bias = Some(array),
            Role::GlobalScale => own.global_scale = Some(array),
        }
    }
    file.flush()?;
    Ok(own)
}

/// Returns random numbers, encoded.
fn random(name: &str, shape: &[u64], encoding: Encoding, seed: u64) -> Encoded {
    let seed = name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(1_099_511_628_211) ^ u64::from(byte));
    let mut random = StdRng::seed_from_u64(seed);
    let columns = shape[shape.len() - 1] as usize;
    // The weights of norms are near one, and products of matrices are as large as their inputs.
    let (middle, spread) = if shape.len() == 1 { (1.0, 0.2) } else { (0.0, 3.0 / (columns as f32).sqrt()) };
    let count = shape.iter().product::<u64>() as usize;
    let numbers: Vec<f32> = (0..count).map(|_| middle + spread * (random.random::<f32>() - 0.5) * 2.0).collect();
    let mut encoded = Encoded::default();
    codec::encode(&numbers, columns, EncodingTarget { encoding, float: Dtype::Bf16, global_scale: None }, &mut encoded);
    encoded
}

/// Writes a repeating pattern.
fn repeat(file: &mut impl Write, mut left: usize) -> Result<()> {
    let block: Vec<u8> = (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3f).collect();
    while left > 0 {
        let now = left.min(block.len());
        file.write_all(&block[..now])?;
        left -= now;
    }
    Ok(())
}
