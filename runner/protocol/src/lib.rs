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
//! | `POST /rerank` | [`RerankRequest`] | [`RerankReply`] |
//! | `POST /tokenize` | [`TokenizeRequest`] | [`Tokens`] |
//! | `POST /detokenize` | [`Tokens`] | [`Text`] |
//! | `POST /render` | [`RenderRequest`] | [`Text`] |
//! | `GET /status` | – | [`Status`] |
//! | `POST /unload` | – | an empty answer, then the process ends |
//!
//! A daemon may tell a runner by `--cpu` which of the machine's instructions to compute with: an [`InstructionSet`], which both of
//! them look for in the same way.
//!
//! `lode-runner --devices=json` prints [`Devices`] and ends.
//!
//! A runner has no path of the store. Its standard input is a Unix socket, by which the daemon passes the descriptors of the
//! blobs that a load plan names, in its order: messages of one byte, their number, with up to [`DESCRIPTORS`] of them. The runner answers each
//! message by a byte when it has taken what came with it, so that few descriptors are open at a time. When the socket
//! closes, the runner ends.
//!
//! Weights on GPUs are held by a process of the same program, see [`HolderCall`].
//!
//! An error is a status of 400 or more with a [`Failure`]. A client that closes its connection cancels its generation.

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
    Tensor,
};
pub use rerank::{RerankReply, RerankRequest};
pub use text::{Message, RenderRequest, Text, TokenCount, TokenizeRequest, Tokens};

use serde::{Deserialize, Serialize};

/// The version of the protocol; a runner refuses to load for another one.
pub const VERSION: u32 = 12;

/// Descriptors that a message passes, at most.
pub const DESCRIPTORS: usize = 64;

/// How a refusal of a prompt that is longer than the context begins. Clients of Ollama look for it; the other APIs have an
/// error code or a text of their own for it.
pub const TOO_LONG: &str = "the input length exceeds the context length";

/// The refusal of a prompt of so many tokens where the context has so many; `advice` says what the user can do.
pub fn too_long(tokens: u64, context: u64, advice: &str) -> String {
    format!("{TOO_LONG}: {tokens} tokens > {context} maximum; {advice}")
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For people.
    pub error: String,
    /// What is at fault.
    pub kind: FailureKind,
}

/// What is at fault where something fails, as far as somebody acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request asks for what is not given.
    BadRequest,
    /// This build, or this device, cannot compute with the model; another attempt gives the same.
    Unsupported,
    /// There is not enough memory now; there may be when other models have been unloaded.
    OutOfMemory,
    /// The runner, the model's files or the machine.
    Internal,
}
