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

/// What a request says of the end of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The most tokens.
    pub(crate) tokens: u64,
    /// Texts that end it.
    pub(crate) stops: Vec<String>,
}

impl Limits {
    /// The stop string that ended an answer, where the request named it; those of the model are not told.
    fn own_stop(&self, stop: Option<String>) -> Option<String> {
        stop.filter(|stop| self.stops.contains(stop))
    }

    /// Why an answer ended. A model that calls tools wants their results next. An answer that ended for its length and is
    /// shorter than the request allows has filled the context. `stopped` by a text that the request named.
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
