//! The config blob: facts about a model that are known without reading a tensor.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The config of a model: Ollama's fields, and Lode's own under `lode`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// `safetensors` for models that are stored by tensor, `gguf` for whole GGUF files.
    pub model_format: String,
    /// The architecture as the source names it, e.g. `llama` or `gemma3_text`.
    pub model_family: String,
    /// `model_family` as a list, as Ollama writes it.
    pub model_families: Vec<String>,
    /// The number of parameters for display, e.g. `134.5M`.
    pub model_type: String,
    /// The predominant tensor type, e.g. `Q4_1` or `BF16`.
    pub file_type: String,
    /// Capabilities of the model: `completion`, `tools`, … Lode does not write them; it derives
    /// them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Ollama's name of the renderer that makes prompts from conversations. It replaces a template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    /// Ollama's name of the parser of the model's output. Lode keeps it for Ollama but does not use
    /// it: Lode parses the output by the chat template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// The longest context that the model was made for, in tokens. Only other tools and Lode 0.1
    /// write it.
    #[serde(skip_serializing_if = "is_zero")]
    pub context_length: u64,
    /// Width of the embeddings. Only other tools and Lode 0.1 write it.
    #[serde(skip_serializing_if = "is_zero")]
    pub embedding_length: u64,
    /// A field of container configs that registries expect; always `amd64`.
    pub architecture: String,
    /// A field of container configs that registries expect; always `linux`.
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

/// Facts about the source, beyond Ollama's fields. They are not trusted for running a model,
/// because any tool may have written them. Lode 0.1 wrote hyper-parameters here; no code reads them
/// now.
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
    /// Parses a config blob. Unknown fields are ignored, missing fields are empty.
    pub fn parse(raw: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(raw).map_err(|e| Error::malformed("config", e))
    }

    /// The config without the fields that a version of Lode or another tool derived from the
    /// source.
    pub fn facts(&self) -> Self {
        Self { capabilities: Vec::new(), context_length: 0, embedding_length: 0, ..self.clone() }
    }

    /// Serializes the config; the same config gives the same bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|e| Error::malformed("config", e))
    }
}
