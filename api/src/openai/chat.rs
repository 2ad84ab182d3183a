//! `/v1/chat/completions`.

mod answer;
mod message;
mod request;
mod stream;

pub use answer::ChatCompletion;
pub use message::ChatMessage;
pub(in crate::openai) use message::thought;
pub use request::{ChatRequest, StreamOptions};
pub use stream::{ChatChunk, ChatStream};

use protocol::FinishReason;

use super::Head;

/// What the documents of one answer have in common. `id` is random; `fingerprint` is the model's digest.
pub fn head(id: &str, created: u64, model: &str, fingerprint: &str) -> Head {
    Head {
        id: format!("chatcmpl-{id}"),
        object: "chat.completion",
        created,
        model: model.to_owned(),
        system_fingerprint: fingerprint.to_owned(),
    }
}

/// Why a choice ended. A model that calls tools wants their results next, which is not an end.
fn finish_reason(reason: FinishReason, calls_tools: bool) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Repetition => "length",
        FinishReason::Stop if calls_tools => "tool_calls",
        FinishReason::Stop => "stop",
    }
}

/// The id of a tool call: the same in a stream and in a document.
fn call_id(head: &Head, choice: u32, call: usize) -> String {
    let id = head.id.strip_prefix("chatcmpl-").unwrap_or(&head.id);
    format!("call_{id}_{choice}_{call}")
}

#[cfg(test)]
mod tests;
