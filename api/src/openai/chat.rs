//! `/v1/chat/completions`.

mod answer;
mod message;
mod request;
mod stream;

pub use answer::ChatCompletion;
pub use message::ChatMessage;
pub(in crate::openai) use message::insert_reasoning;
pub use request::{ChatRequest, StreamOptions};
pub use stream::{ChatChunk, ChatStream};

use protocol::FinishReason;

use super::Head;

/// Creates the fields that all documents of a response share. `id` is random; `fingerprint` is the
/// digest of the model.
pub fn head(id: &str, created: u64, model: &str, fingerprint: &str) -> Head {
    Head {
        id: format!("chatcmpl-{id}"),
        object: "chat.completion",
        created,
        model: model.to_owned(),
        system_fingerprint: fingerprint.to_owned(),
    }
}

/// Returns `OpenAI`'s finish reason. If the response has tool calls, the model expects their
/// results next, which is not a stop.
fn finish_reason(reason: FinishReason, calls_tools: bool) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Repetition => "length",
        FinishReason::Stop if calls_tools => "tool_calls",
        FinishReason::Stop => "stop",
    }
}

/// Returns the id of a tool call, which is the same in a stream and in a complete response.
fn call_id(head: &Head, choice: u32, call: usize) -> String {
    let id = head.id.strip_prefix("chatcmpl-").unwrap_or(&head.id);
    format!("call_{id}_{choice}_{call}")
}

#[cfg(test)]
mod tests;
