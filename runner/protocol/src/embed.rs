//! Embeddings: vectors for texts.

use serde::{Deserialize, Serialize};

/// One input to embed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EmbedInput {
    /// Text. The runner adds the special tokens that the model expects around a text.
    Text {
        /// The text.
        text: String,
    },
    /// Token ids, used unchanged.
    Tokens {
        /// The token ids.
        tokens: Vec<u32>,
    },
}

/// Request for the embeddings of some inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// The inputs; each gives one vector.
    pub inputs: Vec<EmbedInput>,
    /// If true, the end of an input that does not fit into the context is dropped; if false, such
    /// an input is refused.
    pub truncate: bool,
    /// Name of the model's prompt that is put before each text; `None` means the model's default
    /// prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Number of leading elements to keep of each vector; the shortened vector is normalized again.
    #[serde(default)]
    pub dimensions: Option<u32>,
    /// Index of the first input in the client's list, for error messages.
    #[serde(default)]
    pub first: u64,
}

/// The vectors, in the order of the inputs; each has L2 norm 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedReply {
    /// Vectors, `[inputs][dimensions]`.
    pub embeddings: Vec<Vec<f32>>,
    /// Number of tokens of each input, without dropped tokens.
    pub prompt_tokens: Vec<u64>,
    /// Number of tokens, over all inputs, that were dropped because they did not fit.
    pub truncated_tokens: u64,
}
