//! The runner protocol: the messages between the daemon and a runner.
//!
//! A runner is a process that serves HTTP on a Unix socket. Requests and replies are JSON. The
//! reply to a generation request consists of lines of JSON, one [`GenerateEvent`] each.
//!
//! | call | request | reply |
//! |---|---|---|
//! | `POST /load` | [`LoadRequest`] | [`LoadReply`]; once per process |
//! | `POST /context` | [`ContextRequest`] | [`LoadReply`] |
//! | `POST /generate` | [`GenerateRequest`] | [`GenerateEvent`] lines; `done` or `error` is last |
//! | `POST /evaluate` | [`EvaluateRequest`] | little-endian `f32`, see [`EvaluateOutput`] |
//! | `POST /embed` | [`EmbedRequest`] | [`EmbedReply`] |
//! | `POST /rerank` | [`RerankRequest`] | [`RerankReply`] |
//! | `POST /tokenize` | [`TokenizeRequest`] | [`Tokens`] |
//! | `POST /detokenize` | [`Tokens`] | [`Text`] |
//! | `POST /render` | [`RenderRequest`] | [`Text`] |
//! | `GET /status` | – | [`Status`] |
//! | `POST /unload` | – | an empty reply, then the process ends |
//!
//! The option `--cpu` of the runner selects the [`InstructionSet`] to compute with. The daemon and
//! the runner detect the available sets with the same code.
//!
//! `lode-runner --devices=json` prints [`Devices`] and ends.
//!
//! A runner has no path of the store. Its standard input is a Unix socket on which the daemon
//! passes the descriptors of the blobs in a load plan, in the plan's order. Each message is one
//! byte, the number of descriptors that it carries, at most [`DESCRIPTORS`]. The runner replies to
//! each message with one byte when it has taken the descriptors, so that few are open at a time.
//! When the socket closes, the runner ends.
//!
//! Another process of the same program keeps weights on GPUs; see [`HolderCall`].
//!
//! An error is a status of 400 or more with a [`Failure`]. A client that closes its connection
//! cancels its generation.

mod devices;
mod embed;
mod generate;
mod holding;
mod instructions;
pub mod limits;
mod load;
pub mod passing;
mod rerank;
mod text;

pub use devices::{Device, DeviceChoice, Devices, UnusableDevice};
pub use embed::{EmbedInput, EmbedReply, EmbedRequest};
pub use generate::{
    EvaluateOutput, EvaluateRequest, FinishReason, Format, GenerateEvent, GenerateRequest, Logprob, Prompt, Sampling,
    ToolChoice, Usage,
};
pub use holding::{ArrayCall, ArrayReply, BlobPart, HolderCall, Reserved, Survey, SurveyedDevice};
pub use instructions::InstructionSet;
pub use load::{
    Array, Blob, ContextRequest, DeviceLayers, Document, ExpertOf, KvType, LoadReply, LoadRequest, LowRank, Status,
    Tensor, UnchangedFile,
};
pub use rerank::{RerankReply, RerankRequest};
pub use text::{
    Message, PICTURE_MARK, RenderRequest, Text, TextPart, TokenCount, TokenizeRequest, Tokens, picture_mark, text_parts,
};

use serde::{Deserialize, Serialize};

/// Version of the protocol. A runner refuses to load a model for a daemon with another version.
pub const VERSION: u32 = 13;

/// Maximum number of descriptors in one message.
pub const DESCRIPTORS: usize = 64;

/// Beginning of the error message for a prompt that is longer than the context. Clients of Ollama
/// look for this text; the other APIs have an error code or a text of their own.
pub const TOO_LONG: &str = "the input length exceeds the context length";

/// Returns the error message for a prompt of `tokens` tokens that exceeds a context of `context`
/// tokens. `advice` tells the user what to do.
pub fn too_long(tokens: u64, context: u64, advice: &str) -> String {
    format!("{TOO_LONG}: {tokens} tokens > {context} maximum; {advice}")
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Message for the user.
    pub error: String,
    /// Kind of the failure.
    pub kind: FailureKind,
}

/// The kinds of failures that callers distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request is invalid, or asks for something that the model or the runner does not offer.
    BadRequest,
    /// This build or this device cannot compute the model; a retry fails in the same way.
    Unsupported,
    /// There is not enough memory now. A retry can succeed after other models have been unloaded.
    OutOfMemory,
    /// The runner, the model's files or the machine is at fault.
    Internal,
}
