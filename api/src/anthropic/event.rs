//! The events of a stream. Each is a JSON document whose first field, `type`, names the event.

use schemars::JsonSchema;
use serde::Serialize;

use super::message::{Block, Message, Usage};
use crate::Frame;

/// An event of a stream that succeeds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicEvent")]
#[expect(missing_docs, reason = "the fields are Anthropic's")]
pub enum MessageEvent {
    /// Starts the message, which has no content yet.
    MessageStart { message: Message },
    /// Keep-alive without content.
    Ping {},
    /// Opens a content block.
    ContentBlockStart { index: usize, content_block: Block },
    /// Appends to the open content block.
    ContentBlockDelta { index: usize, delta: Delta },
    /// Closes the content block.
    ContentBlockStop { index: usize },
    /// Reports why the message ended and its token usage.
    MessageDelta { delta: Ending, usage: Usage },
    /// Ends the stream.
    MessageStop {},
}

/// An addition to a content block.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "AnthropicDelta")]
pub enum Delta {
    /// Text of the answer.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// Text of the model's reasoning.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// A piece of the JSON of a tool's input.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// Why a message ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicEnding")]
pub struct Ending {
    pub stop_reason: &'static str,
    pub stop_sequence: Option<String>,
}

impl MessageEvent {
    /// Returns the server-sent event for this document.
    pub(super) fn frame(&self) -> Frame {
        let name = match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping {} => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        };
        Frame::named(name, self)
    }
}
