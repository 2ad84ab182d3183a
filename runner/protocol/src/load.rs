//! Loading a model: the plan that the daemon derives from the manifest.

use serde::{Deserialize, Serialize};

/// Everything a runner needs to load a model. Blobs are immutable; the daemon passes their
/// descriptors separately.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadRequest {
    /// The daemon's [`VERSION`](crate::VERSION).
    pub version: u32,
    /// Digest of the manifest.
    pub model: String,
    /// `auto`, `cpu`, `cuda:N` or `metal`.
    pub device: String,
    /// Explanation of the choice of `device`, for messages to the user; empty if the daemon did not
    /// choose it.
    #[serde(default)]
    pub device_note: String,
    /// Assignment of layers to devices, in layer order. Layers that no entry contains are on the
    /// CPU. If the list is empty, all layers are on `device`.
    #[serde(default)]
    pub layers: Vec<DeviceLayers>,
    /// If true, the holder process keeps the weights on devices; the first descriptor is the socket
    /// to it.
    #[serde(default)]
    pub is_held: bool,
    /// Maximum number of tokens in a sequence.
    pub context: u64,
    /// Number of sequences that are generated concurrently; each has `context` tokens of the KV
    /// cache.
    pub slots: u64,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// If true, all weights are dequantized and everything is computed in float32: slow, large,
    /// exact.
    pub reference: bool,
    /// If true, the CPU computes prompt tokens and generated tokens in the same way: slower, but
    /// bit-identical.
    #[serde(default)]
    pub deterministic: bool,
    /// The decoder's blueprint: `architectures::Blueprint` as JSON.
    pub blueprint: serde_json::Value,
    /// The files of the model, each once. The daemon opens them and passes their descriptors in
    /// this order.
    pub blobs: Vec<Blob>,
    /// All tensors of the model.
    pub tensors: Vec<Tensor>,
    /// Low-rank updates that adapters add to projections, in the order in which they are added.
    #[serde(default)]
    pub adapters: Vec<LowRank>,
    /// Tokenizer, templates, configs, GGUF headers.
    pub documents: Vec<Document>,
    /// Index in `blobs` of the vocabulary as a `vocabulary::TokenTable`. If `None`, the runner
    /// derives the table from the tokenizer document.
    #[serde(default)]
    pub token_table: Option<usize>,
    /// A chat template that replaces the model's own.
    pub template: Option<String>,
}

/// A device, and the range of layers that it computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLayers {
    /// Device as [`LoadRequest::device`] names it.
    pub device: String,
    /// Index of the first layer. The output part after the last layer counts as one more layer.
    pub first: u64,
    /// Number of layers.
    pub count: u64,
}

/// A tensor: its encoding and the location of its arrays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Canonical name.
    pub name: String,
    /// `F32`, `F16`, `BF16`, …, or a `quant_type` such as `q4_1`, `int4`, `mxfp8`, `fp8_128x128`.
    pub dtype: String,
    /// Number of elements of a row that share a scale; 0 if `dtype` implies it.
    #[serde(default)]
    pub group: u64,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The codes of a quantized tensor, or the elements themselves.
    pub weight: Array,
    /// One scale for each group or block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Array>,
    /// The value of code 0, for each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Array>,
    /// One multiplier for the whole tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_scale: Option<Array>,
}

/// A low-rank update that an adapter adds to a projection: `scale · up(down(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LowRank {
    /// Weight of the projection: an `architectures::Tensor` of the blueprint as JSON.
    pub weight: serde_json::Value,
    /// Name of the module in the adapter's files.
    pub module: String,
    /// `[rank, input]`.
    pub down: Tensor,
    /// `[output, rank]`.
    pub up: Tensor,
    /// True if both factors are stored transposed.
    #[serde(default)]
    pub transposed: bool,
    /// The expert that this update is for, if the tensors contain the factors of several experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert: Option<ExpertOf>,
    /// Rows of `up` that belong to the weight: `architectures::Rows` as JSON; `None` means all
    /// rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<serde_json::Value>,
    /// Layout of the heads in the rows of `up`, named as in the blueprint: `half` or `interleaved`.
    /// `None` means the layout of the weight.
    pub layout: Option<String>,
    /// Factor of the product.
    pub scale: f64,
}

/// One expert among several whose factors are in the same tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertOf {
    /// Index of the expert.
    pub index: u64,
    /// Number of experts, if their factors are joined in one matrix: `down` is
    /// `[experts · rank, input]`, `up` is `[output, rank · experts]`, and column `r · experts + e`
    /// of `up` belongs to expert `e`. `None` if the tensors are stacks whose first dimension is the
    /// expert.
    pub joined: Option<u64>,
    /// For joined factors: `down` holds the transpose of `up`, and `up` the transpose of `down`.
    #[serde(default)]
    pub is_swapped: bool,
}

/// Location of the bytes of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Index of the blob in [`LoadRequest::blobs`].
    pub blob: usize,
    /// Offset of the first byte in the blob.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Element type, as safetensors names it.
    pub dtype: String,
}

/// A file of the model that is not a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// File name, e.g. `tokenizer.json`; a GGUF header has the name of its file.
    pub name: String,
    /// Index of the blob in [`LoadRequest::blobs`].
    pub blob: usize,
}

/// A file of the model. A runner does not know its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Name in error messages: the digest of a blob, or the path of a file in which blobs lie.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// The identity that a file outside of the store must keep. Blobs of the store never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged: Option<UnchangedFile>,
}

impl Blob {
    /// Identifies the bytes of the file among those of all models.
    pub fn key(&self) -> String {
        match self.unchanged {
            None => self.name.clone(),
            Some(UnchangedFile { device, inode, modified, changed }) => {
                format!("{} {device} {inode} {modified} {changed}", self.name)
            }
        }
    }
}

/// Facts by which a runner notices that a file has changed since its bytes were verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnchangedFile {
    /// Number of the device.
    pub device: u64,
    /// Number of the file on the device.
    pub inode: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified: i128,
    /// Time of the last change of content or metadata, in nanoseconds since 1970.
    pub changed: i128,
}

/// Element type of a KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// 4 bytes per element.
    F32,
    /// 2 bytes per element.
    #[default]
    F16,
    /// 2 bytes per element, with the range of `f32`.
    Bf16,
    /// 34 bytes per 32 elements.
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl KvType {
    /// All element types.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Parses a name, ignoring case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kv_type| kv_type.name().eq_ignore_ascii_case(name))
    }

    /// Returns the bytes of a row of `elements` elements, rounded up to whole blocks.
    pub fn row_bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements * 4,
            Self::F16 | Self::Bf16 => elements * 2,
            Self::Q8_0 => elements.div_ceil(32) * 34,
        }
    }
}

/// Request to replace the KV cache of the loaded model; the weights stay loaded. Running
/// generations finish first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextRequest {
    /// See [`LoadRequest::context`].
    pub context: u64,
    /// See [`LoadRequest::slots`].
    pub slots: u64,
    /// See [`LoadRequest::kv_type`].
    pub kv_type: KvType,
}

/// The result of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReply {
    /// The selected device.
    pub device: String,
    /// Description of the device, or the reason why no other was selected.
    pub device_note: String,
    /// Maximum number of tokens in a sequence.
    pub context: u64,
    /// Number of sequences that are generated concurrently.
    pub slots: u64,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Bytes of weights, mapped or on devices.
    pub weights: u64,
    /// Bytes of the KV cache of all slots.
    pub kv_cache: u64,
    /// Bytes of weights and KV cache in the memory of devices.
    #[serde(default)]
    pub on_devices: u64,
    /// Private bytes of the process after the load; 0 if the system does not report them.
    pub private: u64,
}

/// State of a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Digest of the loaded model's manifest; `None` before the load.
    pub model: Option<String>,
    /// Number of generations that run or wait.
    pub active: u64,
    /// Heartbeat: a number that changes with each layer and each pass; `None` while the engine does
    /// not compute.
    pub computing: Option<u64>,
    /// Ids of the processes that the runner has forked; they end with it.
    pub helpers: Vec<u32>,
    /// True if the runner was built to compute on the CPU only.
    pub is_for_cpu: bool,
    /// Private bytes of the process; 0 if the system does not report them.
    pub private: u64,
    /// Process id of the runner.
    pub pid: u32,
}
