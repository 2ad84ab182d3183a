//! Embedding: texts to vectors.

use serde::{Deserialize, Serialize};

/// One thing to embed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EmbedInput {
    /// Text; the tokens that the model wants around one are added.
    Text {
        /// The text.
        text: String,
    },
    /// Tokens as they are.
    Tokens {
        /// The ids.
        tokens: Vec<u32>,
    },
}

/// What to embed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// Each gives a vector.
    pub inputs: Vec<EmbedInput>,
    /// Whether the end of an input that does not fit is dropped; else it is refused.
    pub truncate: bool,
    /// The name of the model's prompt that goes before each text; the model's default where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Only the first so many elements of each vector, normalised again.
    #[serde(default)]
    pub dimensions: Option<u32>,
    /// The place of the first input in the client's list, for errors.
    #[serde(default)]
    pub first: u64,
}

/// The vectors, in the order of the inputs; of length 1 (L2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedReply {
    /// `[inputs][dimensions]`.
    pub embeddings: Vec<Vec<f32>>,
    /// Tokens of each input, those that were dropped not counted.
    pub prompt_tokens: Vec<u64>,
    /// Tokens of all inputs that were dropped because they did not fit.
    pub truncated_tokens: u64,
}
