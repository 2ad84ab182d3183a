//! Loading a model: the plan that the daemon made from the manifest.

use serde::{Deserialize, Serialize};

/// Everything a runner needs of a model. Blobs do not change; their descriptors are passed beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadRequest {
    /// [`VERSION`](crate::VERSION) of the daemon.
    pub version: u32,
    /// The manifest's digest.
    pub model: String,
    /// `auto`, `cpu`, `cuda:N` or `metal`.
    pub device: String,
    /// What people are told of the choice of `device`, where the daemon has made it.
    #[serde(default)]
    pub device_note: String,
    /// Devices with their layers, in the order of these; the others are the CPU's. Where there are none, all are on `device`.
    #[serde(default)]
    pub layers: Vec<DeviceLayers>,
    /// Whether weights on devices are somebody else's, who is asked for them: the first descriptor is the socket to him.
    #[serde(default)]
    pub is_held: bool,
    /// Tokens that a sequence may have.
    pub context: u64,
    /// Sequences that are generated at a time; each has `context` tokens of the KV cache.
    pub slots: u64,
    /// How the KV cache keeps keys and values.
    pub kv_type: KvType,
    /// Dequantize all weights and compute in float32 throughout: slow, large, exact.
    pub reference: bool,
    /// Compute a token on the CPU in the same way whether it is given or generated: slower answers, the same to the bit.
    #[serde(default)]
    pub deterministic: bool,
    /// What the decoder is built from: `architectures::Blueprint` as JSON.
    pub blueprint: serde_json::Value,
    /// The files of the model, each once. The daemon opens them and passes their descriptors in this order.
    pub blobs: Vec<Blob>,
    /// Every tensor.
    pub tensors: Vec<Tensor>,
    /// What adapters add to projections, in the order in which it is added.
    #[serde(default)]
    pub adapters: Vec<LowRank>,
    /// Tokenizer, templates, configs, GGUF headers.
    pub documents: Vec<Document>,
    /// The place in `blobs` of the vocabulary as a `vocabulary::TokenTable`, where the daemon has one; else the runner makes it
    /// from the document.
    #[serde(default)]
    pub token_table: Option<usize>,
    /// A chat template that replaces the model's own.
    pub template: Option<String>,
}

/// A device and the layers that it computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLayers {
    /// As [`LoadRequest::device`] names it.
    pub device: String,
    /// The first of them; what follows the layers has the number behind the last.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// A tensor: how it is encoded and where its arrays are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Canonical name.
    pub name: String,
    /// `F32`, `F16`, `BF16`, …, or a `quant_type` such as `q4_1`, `int4`, `mxfp8`, `fp8_128x128`.
    pub dtype: String,
    /// Elements of a row that share a scale; 0 where `dtype` says everything.
    #[serde(default)]
    pub group: u64,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The codes, or the elements themselves.
    pub weight: Array,
    /// A number for each group or block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Array>,
    /// The value of code 0 for each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Array>,
    /// One multiplier for the tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_scale: Option<Array>,
}

/// What an adapter adds to a projection: `scale · up(down(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LowRank {
    /// The projection's weight: an `architectures::Tensor` of the blueprint as JSON.
    pub weight: serde_json::Value,
    /// What the files of the adapter call it.
    pub module: String,
    /// `[rank, input]`.
    pub down: Tensor,
    /// `[output, rank]`.
    pub up: Tensor,
    /// Both are stored the other way round.
    #[serde(default)]
    pub transposed: bool,
    /// Which expert's factors are meant, where the tensors have those of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert: Option<ExpertOf>,
    /// The rows of `up` that are the weight's: `architectures::Rows` as JSON; all where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<serde_json::Value>,
    /// The layout of heads that the rows of `up` have, as the blueprint names it: `half` or `interleaved`; that of the weight where
    /// there is none.
    pub layout: Option<String>,
    /// What the product is multiplied by.
    pub scale: f64,
}

/// An expert among those whose factors are in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertOf {
    /// Its number.
    pub index: u64,
    /// Among how many, where `down` is `[experts · rank, input]` and `up` `[output, rank · experts]`, whose column
    /// `r · experts + e` is of expert `e`; `None` where the tensors are stacks, the number of the expert first.
    pub joined: Option<u64>,
    /// Of joined factors: `down` has the transpose of `up`, and `up` that of `down`.
    #[serde(default)]
    pub is_swapped: bool,
}

/// Where the bytes of an array are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// The place of its blob in [`LoadRequest::blobs`].
    pub blob: usize,
    /// First byte in the blob.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Element type, as safetensors names it.
    pub dtype: String,
}

/// A file of the model that is not a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its name, e.g. `tokenizer.json`; a GGUF header has the name of its file.
    pub name: String,
    /// The place of its blob in [`LoadRequest::blobs`].
    pub blob: usize,
}

/// A file of the model. A runner has no path of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// What errors call it: its digest.
    pub name: String,
    /// Its bytes.
    pub size: u64,
}

/// How a KV cache keeps its elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    #[default]
    F16,
    /// 2 bytes, with the range of `f32`.
    Bf16,
    /// 34 bytes for 32 elements.
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Reads what people write, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kv_type| kv_type.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of so many elements; whole blocks.
    pub fn row_bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements * 4,
            Self::F16 | Self::Bf16 => elements * 2,
            Self::Q8_0 => elements.div_ceil(32) * 34,
        }
    }
}

/// Another KV cache for the loaded model; the weights stay as they are. What is being generated ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextRequest {
    /// See [`LoadRequest::context`].
    pub context: u64,
    /// See [`LoadRequest::slots`].
    pub slots: u64,
    /// See [`LoadRequest::kv_type`].
    pub kv_type: KvType,
}

/// What a load has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReply {
    /// The device that was chosen.
    pub device: String,
    /// What it is, or why no other was chosen.
    pub device_note: String,
    /// Tokens that a sequence may have.
    pub context: u64,
    /// Sequences that are generated at a time.
    pub slots: u64,
    /// How the KV cache keeps its elements.
    pub kv_type: KvType,
    /// Bytes of weights, mapped or on the device.
    pub weights: u64,
    /// Bytes of the KV cache of all slots.
    pub kv_cache: u64,
    /// Bytes of weights and KV cache that are in memory of devices.
    #[serde(default)]
    pub on_devices: u64,
    /// Bytes of the process that nobody shares, after the load; 0 where the system does not say.
    pub private: u64,
}

/// What a runner is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The loaded model's manifest digest; none before the load.
    pub model: Option<String>,
    /// Generations that run or wait.
    pub active: u64,
    /// While the engine computes, a number that changes with each layer and each pass.
    pub computing: Option<u64>,
    /// Processes that it has forked; they end with it.
    pub helpers: Vec<u32>,
    /// Whether it was built to compute on the CPU only.
    pub is_for_cpu: bool,
    /// Bytes of the process that nobody shares; 0 where the system does not say.
    pub private: u64,
    /// The process id.
    pub pid: u32,
}
