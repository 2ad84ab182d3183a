//! The config blob: what is known of a model without reading a tensor.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The config of a model: what Ollama puts there, and Lode's own facts under `lode`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// `safetensors` for models stored by tensor, `gguf` for whole files.
    pub model_format: String,
    /// The architecture as the source names it, e.g. `llama` or `gemma3_text`.
    pub model_family: String,
    /// The same in a list, as Ollama has it.
    pub model_families: Vec<String>,
    /// The number of parameters for people, e.g. `134.5M`.
    pub model_type: String,
    /// The predominant tensor type, e.g. `Q4_1` or `BF16`.
    pub file_type: String,
    /// What the model can do: `completion`, `tools`, … Only others write it; what a model can do is derived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// What makes prompts of conversations, by Ollama's name for it, in the place of a template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    /// What reads answers, by Ollama's name for it. Kept for Ollama: we read answers as the template has them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// The longest context that the model was made for, in tokens. Only others and version 0.1 write it.
    #[serde(skip_serializing_if = "is_zero")]
    pub context_length: u64,
    /// Width of the embeddings. Only others and version 0.1 write it.
    #[serde(skip_serializing_if = "is_zero")]
    pub embedding_length: u64,
    /// What a container's config says; always `amd64`, as registries expect the field.
    pub architecture: String,
    /// What a container's config says; always `linux`.
    pub os: String,
    /// The layer digests, as a container's config lists them.
    pub rootfs: RootFs,
    /// Lode's own facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lode: Option<LodeConfig>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The layers as a container's config lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// Always `layers`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Digests in the manifest's order.
    pub diff_ids: Vec<String>,
}

/// What Lode says of the source beyond Ollama's fields. Nothing runs by it: anybody may have written it. Version 0.1 had
/// hyper-parameters here, which nobody reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LodeConfig {
    /// Number of tensors.
    pub tensor_count: u64,
    /// Number of parameters.
    pub parameter_count: u64,
    /// `gguf`, `huggingface` or `mlx`.
    pub source_format: String,
}

impl ModelConfig {
    /// Reads a config blob. Fields that are not known are ignored, fields that are missing are empty.
    pub fn parse(raw: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(raw).map_err(|e| Error::malformed("config", e))
    }

    /// What it says of the source, without what a version of Lode has understood of it.
    pub fn facts(&self) -> Self {
        Self { capabilities: Vec::new(), context_length: 0, embedding_length: 0, ..self.clone() }
    }

    /// Writes the blob; the same config gives the same bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|e| Error::malformed("config", e))
    }
}
