//! LM Studio's REST API, `/api/v0`: a model list with more detail than `OpenAI`'s. The other
//! endpoints are `OpenAI`'s below another path.

use schemars::JsonSchema;
use serde::Serialize;

/// A model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "LmStudioModel")]
#[expect(missing_docs, reason = "the fields are LM Studio's")]
pub struct Model {
    pub id: String,
    pub object: &'static str,
    /// `llm` or `embeddings`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub publisher: String,
    pub arch: String,
    /// Format of the files that the model was imported from.
    pub compatibility_type: String,
    pub quantization: String,
    /// `loaded` or `not-loaded`.
    pub state: &'static str,
    pub max_context_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_context_length: Option<u64>,
    pub capabilities: Vec<String>,
}

/// Response of `GET /api/v0/models`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "LmStudioModels")]
#[expect(missing_docs, reason = "the fields are LM Studio's")]
pub struct Models {
    pub object: &'static str,
    pub data: Vec<Model>,
}
