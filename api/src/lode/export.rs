//! A model as the files of some format.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/export`; the answer is a tar of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExportRequest {
    /// Name of the model.
    pub model: String,
    /// Which files.
    pub format: ExportFormat,
    /// What floats are written as; without it as they are stored, and BF16 for what is quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<ExportDtype>,
    /// The most bytes of tensors in a file, where the format knows shards; without it 5 GB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<u64>,
    /// Whether something may be lost.
    pub lossy: bool,
    /// Read everything and say what is wrong, but send nothing: for asking why an export broke off.
    pub check: bool,
}

/// Answer of `POST /api/export` with `check`: nothing is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportChecked {}

/// The files that a model can become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportFormat {
    /// Those that were imported.
    #[default]
    Origin,
    /// A Hugging Face folder.
    Safetensors,
    /// One GGUF file.
    Gguf,
    /// A folder for MLX.
    Mlx,
}

/// The float types that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportDtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE.
    F16,
    /// 16 bits, the exponent of F32.
    Bf16,
}
