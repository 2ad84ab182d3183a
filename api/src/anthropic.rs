//! Anthropic's API: messages and token counts.
//!
//! Unknown fields are ignored. A known field that asks for an unsupported feature is refused by
//! name.

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

/// The limits that a request sets on its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of tokens to generate.
    pub(crate) tokens: u64,
    /// The request's stop sequences.
    pub(crate) stops: Vec<String>,
}

impl Limits {
    /// Returns the stop string that ended the response if the request named it. Stop strings of the
    /// model are not reported.
    fn own_stop(&self, stop: Option<String>) -> Option<String> {
        stop.filter(|stop| self.stops.contains(stop))
    }

    /// Returns Anthropic's stop reason. If the response has tool calls, the model expects their
    /// results next: `tool_use`. A response that ended for its length but is shorter than the
    /// request allows has filled the context. `stopped` is true if a stop sequence of the request
    /// ended it.
    fn stop_reason(&self, reason: FinishReason, calls_tools: bool, tokens: u64, stopped: bool) -> &'static str {
        match reason {
            FinishReason::Length if tokens < self.tokens => "model_context_window_exceeded",
            FinishReason::Length | FinishReason::Repetition => "max_tokens",
            FinishReason::Stop if calls_tools => "tool_use",
            FinishReason::Stop if stopped => "stop_sequence",
            FinishReason::Stop => "end_turn",
        }
    }
}

#[cfg(test)]
mod tests;
