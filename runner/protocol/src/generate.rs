//! Generating: the request, and the events that answer it.

use serde::{Deserialize, Serialize};

use crate::{FailureKind, RenderRequest};

/// What to go on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Prompt {
    /// A conversation, rendered by the chat template.
    Chat(Box<RenderRequest>),
    /// Text as it is; special tokens in it are read as such, and those that the model wants are added.
    Text {
        /// The text.
        text: String,
    },
    /// Tokens as they are.
    Tokens {
        /// The ids.
        tokens: Vec<u32>,
    },
    /// What is missing between two texts. Refused where the model has no tokens for it.
    Insert {
        /// What comes before.
        prefix: String,
        /// What comes after.
        suffix: String,
    },
}

/// What the text of an answer must be. The runner offers the sampler only tokens that may follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Format {
    /// Any JSON object.
    Json,
    /// JSON that fits a schema.
    Schema {
        /// The JSON schema. Objects that name properties and say nothing of others have no others.
        schema: serde_json::Value,
    },
    /// Text that a regular expression matches, from its beginning to its end.
    Regex {
        /// In the syntax of Rust's `regex`; without what looks around.
        pattern: String,
    },
    /// Text of a context-free grammar.
    Lark {
        /// In `llguidance`'s variant of Lark's syntax; `start` is where it begins.
        grammar: String,
    },
}

/// Whether the model may call the tools that its prompt offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToolChoice {
    /// As it likes; the text is read for calls where the prompt has tools.
    #[default]
    Auto,
    /// It may not: nothing is read as a call.
    None,
    /// It must call one.
    Required,
    /// It must call this one.
    Named {
        /// The function.
        name: String,
    },
}

/// What to generate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of the request of its own")]
pub struct GenerateRequest {
    /// What to go on from.
    pub prompt: Prompt,
    /// Tokens before the prompt's, from an earlier generation.
    #[serde(default)]
    pub before: Vec<u32>,
    /// How to choose tokens.
    #[serde(default)]
    pub sampling: Sampling,
    /// Strings that end the generation; they are not part of its text.
    #[serde(default)]
    pub stop: Vec<String>,
    /// At most so many tokens; until the context is full where there is no limit.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// How many of a prompt's first tokens stay when it does not fit and its beginning is dropped.
    #[serde(default)]
    pub keep: u64,
    /// Whether the beginning of a prompt that does not fit is dropped; else it is refused.
    #[serde(default = "yes")]
    pub truncate: bool,
    /// Whether the oldest tokens after `keep` are dropped when the context is full; else the generation ends.
    #[serde(default)]
    pub shift: bool,
    /// Ends a generation whose last so many tokens are the same few again and again; 0 never does.
    #[serde(default)]
    pub repeat_limit: u64,
    /// For each token, its log-probability and those of so many others.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Added to the logits of these tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
    /// What the text must be; thinking before it is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Whether tools may be called.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// Tell thinking apart from the answer, where the model marks it; else it is text.
    #[serde(default)]
    pub thinking: bool,
    /// Tell the tokens of prompt and answer at the end.
    #[serde(default)]
    pub tell_tokens: bool,
    /// Whose request it is: what was computed of a prompt is found again only by requests with the same.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
}

fn yes() -> bool {
    true
}

impl GenerateRequest {
    /// A request with everything else as it is where nothing is said.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            before: Vec::new(),
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

/// How to choose the next token. Filters apply in this order: penalties, top-k, typical, top-p, min-p, temperature.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token always.
    pub temperature: f32,
    /// Keeps the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest whose probabilities sum up to p; 1 keeps all.
    pub top_p: f32,
    /// Keeps those at least p times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keeps those whose surprise is nearest to the expected one, up to this mass; 1 keeps all.
    pub typical_p: f32,
    /// How many of the last tokens the penalties look at; 0 none.
    pub repeat_last_n: u32,
    /// Divides positive logits and multiplies negative ones of tokens that occurred; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted once from the logits of tokens that occurred.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time they occurred.
    pub frequency_penalty: f32,
    /// Makes a generation repeatable; another one each time where there is none.
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
    /// The model ended it, or a stop string.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
    /// The same few tokens came again and again, see [`GenerateRequest::repeat_limit`].
    Repetition,
}

/// Counts and times of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of those, found in the KV cache from the request before.
    pub cached_tokens: u64,
    /// Tokens of the prompt that were dropped because they did not fit.
    pub truncated_tokens: u64,
    /// Nanoseconds from the first token of the prompt to the logits after its last.
    pub prompt_nanos: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Nanoseconds for generating them.
    pub nanos: u64,
}

/// A token with its log-probability, before sampling changed anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Its text; not whole characters always.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens at this place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Logprob>,
}

/// A line of the answer to a generate request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum GenerateEvent {
    /// More text, always whole characters; empty where only log-probabilities are told.
    Text {
        /// The text.
        text: String,
        /// Of the tokens since the last event, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// More of what the model thinks before it answers.
    Thinking {
        /// The text.
        text: String,
        /// As in `text`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// The model calls a tool; whole.
    ToolCall {
        /// The function.
        name: String,
        /// An object.
        arguments: serde_json::Map<String, serde_json::Value>,
        /// Of the tokens since the last event, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Logprob>,
    },
    /// The end.
    Done {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
        /// The tokens of prompt and answer, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<u32>,
        /// The stop string that ended it, where one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<String>,
    },
    /// The end, for a reason that is not the model's.
    Error {
        /// For people.
        error: String,
        /// What is at fault.
        kind: FailureKind,
    },
}

/// A sequence that the model is to judge at every position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluateRequest {
    /// The ids.
    pub tokens: Vec<u32>,
    /// Feed one token at a time, as decoding does, instead of all at once.
    #[serde(default)]
    pub stepwise: bool,
    /// What is wanted.
    #[serde(default)]
    pub output: EvaluateOutput,
}

/// What an evaluation gives, as little-endian `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluateOutput {
    /// The logits after each token, `[tokens, vocabulary]`. All of them are in memory at once.
    #[default]
    Logits,
    /// The natural logarithm of the probability of each token but the first, `[tokens - 1]`. Memory is bounded, however
    /// long the sequence.
    Logprobs,
}
