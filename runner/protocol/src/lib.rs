//! The runner protocol: what the daemon and a runner say to one another.
//!
//! A runner is a process that serves HTTP on a Unix socket. Requests and answers are JSON; a generation is answered by
//! lines of JSON, one [`GenerateEvent`] each.
//!
//! | call | request | answer |
//! |---|---|---|
//! | `POST /load` | [`LoadRequest`] | [`LoadReply`]; once per process |
//! | `POST /context` | [`ContextRequest`] | [`LoadReply`] |
//! | `POST /generate` | [`GenerateRequest`] | [`GenerateEvent`] lines, the last is `done` or `error` |
//! | `POST /evaluate` | [`EvaluateRequest`] | little-endian `f32`, see [`EvaluateOutput`] |
//! | `POST /embed` | [`EmbedRequest`] | [`EmbedReply`] |
//! | `POST /tokenize` | [`TokenizeRequest`] | [`Tokens`] |
//! | `POST /detokenize` | [`Tokens`] | [`Text`] |
//! | `POST /render` | [`RenderRequest`] | [`Text`] |
//! | `GET /status` | – | [`Status`] |
//! | `POST /unload` | – | an empty answer, then the process ends |
//!
//! An error is a status of 400 or more with a [`Failure`]. A client that closes its connection cancels its generation.

mod embed;
mod generate;
pub mod limits;
mod load;
mod text;

pub use embed::{EmbedInput, EmbedReply, EmbedRequest};
pub use generate::{
    EvaluateOutput, EvaluateRequest, FinishReason, Format, GenerateEvent, GenerateRequest, Logprob, Prompt, Sampling,
    ToolChoice, Usage,
};
pub use load::{Array, ContextRequest, Document, KvType, LoadReply, LoadRequest, LowRank, Status, Tensor};
pub use text::{Message, RenderRequest, Text, TokenizeRequest, Tokens};

use serde::{Deserialize, Serialize};

/// The version of the protocol; a runner refuses to load for another one.
pub const VERSION: u32 = 4;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For people.
    pub error: String,
}
