//! Generation: the request, and the events that the runner sends in response.

use serde::{Deserialize, Serialize};

use crate::{FailureKind, RenderRequest};

/// The input that a generation continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Prompt {
    /// A conversation, rendered with the chat template.
    Chat(Box<RenderRequest>),
    /// Raw text. Special tokens in it are parsed as such, and the tokens that the model expects
    /// around a text are added.
    Text {
        /// The text.
        text: String,
    },
    /// Token ids, used unchanged.
    Tokens {
        /// The token ids.
        tokens: Vec<u32>,
    },
    /// Fill-in-the-middle: the model generates the text between two texts. Refused if the model has
    /// no tokens for it.
    Insert {
        /// Text before the gap.
        prefix: String,
        /// Text after the gap.
        suffix: String,
    },
}

/// Constraint on the text of the answer. The runner offers the sampler only tokens that the
/// constraint allows next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Format {
    /// Any JSON object.
    Json,
    /// JSON that conforms to a schema.
    Schema {
        /// The JSON schema. An object with `properties` and without `additionalProperties` allows
        /// no further properties.
        schema: serde_json::Value,
    },
    /// Text that a regular expression matches from beginning to end.
    Regex {
        /// Pattern in the syntax of Rust's `regex`, without look-around.
        pattern: String,
    },
    /// Text of a context-free grammar.
    Lark {
        /// Grammar in `llguidance`'s variant of Lark's syntax; the start rule is `start`.
        grammar: String,
    },
}

/// Whether the model may call the tools that its prompt offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides. If the prompt has tools, the text is parsed for calls.
    #[default]
    Auto,
    /// The model may not call tools; no text is parsed as a call.
    None,
    /// The model must call a tool.
    Required,
    /// The model must call the named tool.
    Named {
        /// Name of the function.
        name: String,
    },
}

/// Request for a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of the request of its own")]
pub struct GenerateRequest {
    /// The input to continue.
    pub prompt: Prompt,
    /// Tokens of an earlier generation, which precede those of the prompt.
    #[serde(default)]
    pub before: Vec<u32>,
    /// Files of the pictures in the prompt: PNG, JPEG, WebP or GIF, as base64. The prompt contains
    /// the [mark](crate::picture_mark) of each of them once, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<String>,
    /// Sampling parameters.
    #[serde(default)]
    pub sampling: Sampling,
    /// Stop strings. A generation ends when one of them appears; the stop string is not part of the
    /// text.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Maximum number of tokens to generate; `None` means until the context is full.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Number of leading prompt tokens to keep when the prompt does not fit and tokens are dropped.
    #[serde(default)]
    pub keep: u64,
    /// If true, the beginning of a prompt that does not fit is dropped; if false, such a prompt is
    /// refused.
    #[serde(default = "yes")]
    pub truncate: bool,
    /// If true, the oldest tokens after the first `keep` are dropped when the context is full; if
    /// false, the generation ends.
    #[serde(default)]
    pub shift: bool,
    /// Ends a generation if its last `repeat_limit` tokens repeat the same short sequence; 0
    /// disables the check.
    #[serde(default)]
    pub repeat_limit: u64,
    /// Number of most likely alternatives to report with each token's log-probability; `None`
    /// reports no log-probabilities.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Pairs of a token id and a value that is added to its logit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
    /// Constraint on the text of the answer; thinking before the answer is not constrained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Whether the model may call tools.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// If true, thinking is reported separately from the answer, if the model marks it; if false,
    /// it is part of the text.
    #[serde(default)]
    pub thinking: bool,
    /// If true, the last event reports the tokens of the prompt and the answer.
    #[serde(default)]
    pub tell_tokens: bool,
    /// Isolation domain of the request. Cached prefixes are reused only by requests with the same
    /// domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
}

fn yes() -> bool {
    true
}

impl GenerateRequest {
    /// Creates a request in which all options have their defaults.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            before: Vec::new(),
            pictures: Vec::new(),
            sampling: Sampling::default(),
            stop: Vec::new(),
            max_tokens: None,
            keep: 0,
            truncate: true,
            shift: false,
            repeat_limit: 0,
            top_logprobs: None,
            logit_bias: Vec::new(),
            format: None,
            tool_choice: ToolChoice::Auto,
            thinking: false,
            tell_tokens: false,
            domain: String::new(),
        }
    }
}

/// Sampling parameters. Filters apply in this order: penalties, top-k, typical, top-p, min-p,
/// temperature.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divisor of the logits; 0 always selects the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most likely tokens whose probabilities sum up to p; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens that are at least p times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keeps the tokens whose surprisal is closest to the entropy, up to this probability mass; 1
    /// keeps all.
    pub typical_p: f32,
    /// Number of most recent tokens that the penalties consider; 0 disables the penalties.
    pub repeat_last_n: u32,
    /// Divides the positive logits and multiplies the negative logits of tokens that occurred; 1
    /// has no effect.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of each token that occurred.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each occurrence.
    pub frequency_penalty: f32,
    /// Seed that makes a generation reproducible; `None` means a new random seed.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// Ollama's defaults.
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model generated an end token, or a stop string appeared.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
    /// The generation repeated the same short sequence; see [`GenerateRequest::repeat_limit`].
    Repetition,
}

/// Counts and times of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of tokens in the prompt.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that were already in the KV cache.
    pub cached_tokens: u64,
    /// Number of prompt tokens that were dropped because they did not fit.
    pub truncated_tokens: u64,
    /// Nanoseconds from the first prompt token to the logits after the last one.
    pub prompt_nanos: u64,
    /// Number of generated tokens.
    pub tokens: u64,
    /// Nanoseconds spent on generating them.
    pub nanos: u64,
    /// Number of pictures that the tower computed for the prompt; others were known, or in the KV
    /// cache.
    #[serde(default)]
    pub encoded_pictures: u64,
    /// Nanoseconds that the tower took, which are part of `prompt_nanos`.
    #[serde(default)]
    pub picture_nanos: u64,
}

/// A token with its log-probability, as the model computes it: before sampling changes the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Logprob {
    /// The token id.
    pub id: u32,
    /// Text of the token, which can contain incomplete characters.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens at this position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Logprob>,
}

/// One line of the response to a generation request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum GenerateEvent {
    /// More text, always complete characters; empty if the event only carries log-probabilities.
    Text {
        /// The text.
        text: String,
        /// Log-probabilities of the tokens since the last event, if requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// More of the model's thinking, which precedes its answer.
    Thinking {
        /// The text.
        text: String,
        /// As in `text`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// A complete tool call.
    ToolCall {
        /// Name of the function.
        name: String,
        /// Arguments, as a JSON object.
        arguments: serde_json::Map<String, serde_json::Value>,
        /// Log-probabilities of the tokens since the last event, if requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// The regular end of the generation.
    Done {
        /// Why the generation ended.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
        /// Tokens of the prompt and the answer, if requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<u32>,
        /// The stop string that ended the generation, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<String>,
    },
    /// The generation failed.
    Error {
        /// Message for the user.
        error: String,
        /// Kind of the failure.
        kind: FailureKind,
    },
}

/// Request to compute the model's logits or log-probabilities for every position of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluateRequest {
    /// The token ids.
    pub tokens: Vec<u32>,
    /// If true, the runner feeds one token at a time, as decoding does; if false, all at once.
    #[serde(default)]
    pub stepwise: bool,
    /// The values to return.
    #[serde(default)]
    pub output: EvaluateOutput,
}

/// The values that an evaluation returns, as little-endian `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluateOutput {
    /// The logits after each token, `[tokens, vocabulary]`. All of them are in memory at once.
    #[default]
    Logits,
    /// The natural logarithm of the probability of each token except the first, `[tokens - 1]`.
    /// Memory use is bounded, however long the sequence is.
    Logprobs,
}
