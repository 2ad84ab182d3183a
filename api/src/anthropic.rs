//! Anthropic's API: messages, and how many tokens they are.
//!
//! Requests ignore fields they do not know. What a field asks for and cannot be had is refused by name.

mod content;
mod error;
mod event;
mod message;
mod request;
mod stream;

pub use error::ErrorResponse;
pub use event::MessageEvent;
pub use message::{Message, TokenCount};
pub use request::MessagesRequest;
pub use stream::MessageStream;

use protocol::FinishReason;

/// Why an answer ended. A model that calls tools wants their results next. `limit` is the most tokens that were asked for:
/// an answer that is shorter has filled the context.
fn stop_reason(reason: FinishReason, calls_tools: bool, tokens: u64, limit: u64) -> &'static str {
    match reason {
        FinishReason::Length if tokens < limit => "model_context_window_exceeded",
        FinishReason::Length | FinishReason::Repetition => "max_tokens",
        FinishReason::Stop if calls_tools => "tool_use",
        FinishReason::Stop => "end_turn",
    }
}

#[cfg(test)]
mod tests;
