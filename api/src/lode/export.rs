//! Export of a model to the files of a format.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/export`. The response is a tar of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExportRequest {
    /// Name of the model.
    pub model: String,
    /// Format of the files.
    pub format: ExportFormat,
    /// Data type of floating-point tensors. By default, they keep their stored type, and quantized
    /// tensors become BF16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<ExportDtype>,
    /// Maximum bytes of tensors in a file, for formats with shards. The default is 5 GB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<u64>,
    /// Whether the export may lose information.
    pub lossy: bool,
    /// Read all data and report problems, but send no files. Use it to find out why an export broke
    /// off.
    pub check: bool,
}

/// Response of `POST /api/export` with `check` if there are no problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportChecked {}

/// Format of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportFormat {
    /// The files that were imported, byte for byte.
    #[default]
    Origin,
    /// A Hugging Face folder.
    Safetensors,
    /// One GGUF file.
    Gguf,
    /// A model folder for MLX.
    Mlx,
}

/// Floating-point type of exported tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportDtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE.
    F16,
    /// 16 bits, with the exponent range of F32 (bfloat16).
    Bf16,
}
