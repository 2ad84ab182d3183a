//! Random adapters of the tiny model in every supported format, and the model with the adapter
//! merged into its weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::gguf::{NewTensor, OwnedValue, write_header};
use formats::safetensors::{Header, Member, TensorInfo, canonical_header};
use formats::{Dtype, GgmlType};
use serde_json::json;

use crate::support::{entries, json as read_json, name, read, tiny_model};

/// A matrix: rows, columns, elements in row-major order.
#[derive(Clone)]
pub(super) struct Matrix(pub(super) usize, pub(super) usize, pub(super) Vec<f32>);

/// Tensors by name: shape and elements.
pub(super) type Tensors = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

/// An adapter: it adds `alpha / rank · up · down` to each module's weight.
pub(super) struct Lora {
    pub(super) rank: usize,
    pub(super) alpha: f64,
    pub(super) factors: BTreeMap<String, (Matrix, Matrix)>,
}

/// Returns a pseudo-random matrix with elements between -1/8 and 1/8. The same state gives the same
/// matrix.
pub(super) fn random(rows: usize, columns: usize, state: &mut u64) -> Matrix {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f32::from(i16::from_ne_bytes(u16::try_from(*state >> 48).expect("16 bits").to_ne_bytes())) / 262_144.0
    };
    Matrix(rows, columns, (0..rows * columns).map(|_| next()).collect())
}

impl Matrix {
    pub(super) fn transposed(&self) -> Self {
        let Self(rows, columns, numbers) = self;
        let at = |place: usize| numbers[place % rows * columns + place / rows];
        Self(*columns, *rows, (0..numbers.len()).map(at).collect())
    }

    /// Permutes the rows of each head to the order in GGUF files of the llama family: rows of the
    /// first half go to even positions, rows of the second half to odd ones.
    fn interleaved(&self, head: usize) -> Self {
        let Self(rows, columns, numbers) = self;
        let mut out = vec![0.0; numbers.len()];
        for row in 0..*rows {
            let (within, first) = (row % head, row - row % head);
            let place = if within < head / 2 { 2 * within } else { 2 * (within - head / 2) + 1 };
            out[(first + place) * columns..][..*columns].copy_from_slice(&numbers[row * columns..][..*columns]);
        }
        Self(*rows, *columns, out)
    }

    /// Encodes the matrix as `Q8_0`: a float16 scale and 32 bytes for every 32 elements.
    fn blocks(&self) -> Vec<u8> {
        let block = |numbers: &[f32]| {
            let scale = numbers.iter().fold(0.0f32, |most, number| most.max(number.abs())) / 127.0;
            let scale = half::f16::from_f32(scale);
            let code = |number: &f32| (number / scale.to_f32()).round() as i8;
            let codes: Vec<u8> = numbers.iter().flat_map(|number| code(number).to_le_bytes()).collect();
            [&scale.to_le_bytes()[..], &codes].concat()
        };
        self.2.chunks_exact(32).flat_map(block).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.2.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}

impl Lora {
    /// Returns a random adapter of every projection of the tiny model, including `lm_head`.
    pub(super) fn random(rank: usize, alpha: f64) -> Self {
        let (mut state, mut factors) = (1, BTreeMap::new());
        let mut module = |name: String, output: usize, input: usize| {
            factors.insert(name, (random(rank, input, &mut state), random(output, rank, &mut state)));
        };
        for layer in 0..2 {
            for (name, output, input) in [
                ("self_attn.q_proj", 64, 64),
                ("self_attn.k_proj", 32, 64),
                ("self_attn.v_proj", 32, 64),
                ("self_attn.o_proj", 64, 64),
                ("mlp.gate_proj", 128, 64),
                ("mlp.up_proj", 128, 64),
                ("mlp.down_proj", 64, 128),
            ] {
                module(format!("model.layers.{layer}.{name}"), output, input);
            }
        }
        module("lm_head".to_owned(), 320, 64);
        Self { rank, alpha, factors }
    }

    /// Returns the adapter that cancels this one.
    pub(super) fn negated(&self) -> Self {
        Self { alpha: -self.alpha, factors: self.factors.clone(), ..*self }
    }

    /// Writes the adapter as PEFT does.
    pub(super) fn peft(&self, folder: &Path) {
        let tensors = self.factors.iter().flat_map(|(module, (down, up))| {
            let name = |factor: &str| format!("base_model.model.{module}.{factor}.weight");
            [(name("lora_A"), down.clone()), (name("lora_B"), up.clone())]
        });
        write(folder, "adapter_model.safetensors", &safetensors(tensors));
        let config = json!({"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "alpha_pattern": {}});
        write(folder, "adapter_config.json", config.to_string().as_bytes());
    }

    /// Writes the adapter as mlx-lm does.
    pub(super) fn mlx(&self, folder: &Path) {
        let tensors = self.factors.iter().flat_map(|(module, (down, up))| {
            let name = |factor: &str| format!("{module}.{factor}");
            [(name("lora_a"), down.transposed()), (name("lora_b"), up.transposed())]
        });
        write(folder, "adapters.safetensors", &safetensors(tensors));
        let keys = ["q", "k", "v", "o"].map(|module| format!("self_attn.{module}_proj"));
        let keys: Vec<_> = keys.into_iter().chain(["gate", "up", "down"].map(|m| format!("mlp.{m}_proj"))).collect();
        let scale = self.alpha / self.rank as f64;
        let parameters = json!({"rank": self.rank, "scale": scale, "dropout": 0.0, "keys": keys});
        let config = json!({"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters});
        write(folder, "adapter_config.json", config.to_string().as_bytes());
    }

    /// Writes the adapter as llama.cpp's converter does.
    pub(super) fn gguf(&self, file: &Path, kind: GgmlType) {
        let text = |text: &str| OwnedValue::from(text);
        let metadata = [
            ("general.architecture".to_owned(), text("llama")),
            ("general.type".to_owned(), text("adapter")),
            ("adapter.type".to_owned(), text("lora")),
            ("adapter.lora.alpha".to_owned(), OwnedValue::from(self.alpha as f32)),
        ];
        let tensors: Vec<(String, Matrix)> = self.factors.iter().flat_map(|(m, f)| gguf_tensors(m, f)).collect();
        let new = |(name, Matrix(rows, columns, _)): &(String, Matrix)| NewTensor {
            name: name.clone(),
            kind,
            dims: vec![*columns as u64, *rows as u64],
        };
        let header = write_header(&metadata, &tensors.iter().map(new).collect::<Vec<_>>()).expect("a header");
        let mut bytes = header.bytes;
        let data = bytes.len();
        for (place, (_, matrix)) in header.places.iter().zip(&tensors) {
            bytes.resize(data + usize::try_from(place.offset).expect("small"), 0);
            bytes.extend(if kind == GgmlType::Q8_0 { matrix.blocks() } else { matrix.bytes() });
        }
        bytes.resize(data + usize::try_from(header.data_size).expect("small"), 0);
        std::fs::write(file, bytes).expect("a file");
    }

    /// Returns a folder with the tiny model and the adapter merged into its weights, in float32.
    pub(super) fn merged(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for path in entries(&tiny_model()).into_iter().filter(|path| !name(path).ends_with("safetensors")) {
            std::fs::copy(&path, folder.path().join(name(&path))).expect("a copy");
        }
        let mut config = read_json(&tiny_model().join("config.json"));
        config["tie_word_embeddings"] = false.into();
        config["torch_dtype"] = "float32".into();
        write(folder.path(), "config.json", config.to_string().as_bytes());
        let mut weights = tiny_weights();
        let embedding = weights["model.embed_tokens.weight"].clone();
        weights.insert("lm_head.weight".to_owned(), embedding);
        for (module, (down, up)) in &self.factors {
            let (_, weight) = weights.get_mut(&format!("{module}.weight")).expect("a module of the model");
            merge(weight, down, up, self.alpha / self.rank as f64);
        }
        write(folder.path(), "model.safetensors", &file(&weights));
        folder
    }
}

fn gguf_tensors(module: &str, (down, up): &(Matrix, Matrix)) -> [(String, Matrix); 2] {
    let parts = [
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("lm_head", "output"),
    ];
    let name = parts.iter().fold(module.to_owned(), |name, (theirs, gguf)| name.replace(theirs, gguf));
    let rotated = module.ends_with("q_proj") || module.ends_with("k_proj");
    let up = if rotated { up.interleaved(16) } else { up.clone() };
    [(format!("{name}.weight.lora_a"), down.clone()), (format!("{name}.weight.lora_b"), up)]
}

/// Returns a safetensors file of float32 matrices.
pub(super) fn safetensors(tensors: impl Iterator<Item = (String, Matrix)>) -> Vec<u8> {
    let tensors: Vec<(String, Matrix)> = tensors.collect();
    let shape = |Matrix(rows, columns, _): &Matrix| vec![*rows as u64, *columns as u64];
    let members: Vec<Member> = tensors.iter().map(|(name, m)| member(name, &shape(m), m.2.len())).collect();
    let mut bytes = canonical_header(&members, &BTreeMap::new());
    bytes.extend(tensors.iter().flat_map(|(_, matrix)| matrix.bytes()));
    bytes
}

fn member(name: &str, shape: &[u64], count: usize) -> Member {
    Member { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec(), size: 4 * count as u64 }
}

/// Returns a safetensors file of float32 tensors.
pub(super) fn file(tensors: &Tensors) -> Vec<u8> {
    let members: Vec<Member> =
        tensors.iter().map(|(name, (shape, numbers))| member(name, shape, numbers.len())).collect();
    let mut bytes = canonical_header(&members, &BTreeMap::new());
    bytes.extend(tensors.values().flat_map(|(_, numbers)| numbers.iter().flat_map(|number| number.to_le_bytes())));
    bytes
}

/// Adds `scale · up · down` to a weight.
pub(super) fn merge(weight: &mut [f32], down: &Matrix, up: &Matrix, scale: f64) {
    let (Matrix(rank, input, down), Matrix(output, _, up)) = (down, up);
    for (row, column) in (0..*output).flat_map(|row| (0..*input).map(move |column| (row, column))) {
        let sum: f64 = (0..*rank).map(|i| f64::from(up[row * rank + i]) * f64::from(down[i * input + column])).sum();
        let number = &mut weight[row * input + column];
        *number = (f64::from(*number) + scale * sum) as f32;
    }
}

/// Returns the tiny model's tensors as float32.
fn tiny_weights() -> Tensors {
    numbers(&read(&tiny_model().join("model.safetensors")))
}

/// Returns the tensors of a safetensors file as float32.
fn numbers(bytes: &[u8]) -> Tensors {
    let header = Header::parse(bytes, bytes.len() as u64).expect("a header");
    let place = |at: u64| usize::try_from(header.data_start + at).expect("small");
    let numbers = |t: &TensorInfo| -> Vec<f32> {
        let bytes = &bytes[place(t.begin)..place(t.end)];
        let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match t.dtype {
            Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect(),
            Dtype::F16 => pairs().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            Dtype::Bf16 => pairs().map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
            other => panic!("a tensor of {}", other.name()),
        }
    };
    header.tensors.iter().map(|t| (t.name.clone(), (t.shape.clone(), numbers(t)))).collect()
}

pub(super) fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).unwrap_or_else(|e| panic!("cannot write `{name}`: {e}"));
}

/// Saves an adapter with its weights in a safetensors file.
pub(super) fn save(folder: &Path, tensors: &Tensors, config: &serde_json::Value) {
    std::fs::create_dir(folder).expect("a folder");
    write(folder, "adapter_model.safetensors", &file(tensors));
    write(folder, "adapter_config.json", config.to_string().as_bytes());
}

pub(super) fn plain(matrix: &Matrix) -> (Vec<u64>, Vec<f32>) {
    (vec![matrix.0 as u64, matrix.1 as u64], matrix.2.clone())
}

/// Copies the model's folder, with these weights in float32.
pub(super) fn folder_of(model: &Path, tensors: &Tensors, folder: PathBuf) -> PathBuf {
    std::fs::create_dir(&folder).expect("a folder");
    for path in entries(model).into_iter().filter(|path| !name(path).contains("safetensors")) {
        std::fs::copy(&path, folder.join(name(&path))).expect("a copy");
    }
    let mut config = read_json(&model.join("config.json"));
    config["torch_dtype"] = "float32".into();
    std::fs::remove_file(folder.join("config.json")).expect("removal");
    write(&folder, "config.json", config.to_string().as_bytes());
    write(&folder, "model.safetensors", &file(tensors));
    folder
}

/// Returns the weights of a model's folder as float32.
pub(super) fn weights_of(model: &Path) -> Tensors {
    let files = entries(model).into_iter().filter(|path| name(path).ends_with(".safetensors"));
    files.flat_map(|path| numbers(&read(&path))).collect()
}
