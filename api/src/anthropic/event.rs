//! The events of a stream: documents that begin with their name.

use schemars::JsonSchema;
use serde::Serialize;

use super::message::{Block, Message, Usage};
use crate::Frame;

/// An event of a stream that goes well.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicEvent")]
#[expect(missing_docs, reason = "the fields are Anthropic's")]
pub enum MessageEvent {
    /// The message, without content.
    MessageStart { message: Message },
    /// Nothing happened.
    Ping {},
    /// A block is opened.
    ContentBlockStart { index: usize, content_block: Block },
    /// A block grows.
    ContentBlockDelta { index: usize, delta: Delta },
    /// A block is complete.
    ContentBlockStop { index: usize },
    /// How the message ended, and what it took.
    MessageDelta { delta: Ending, usage: Usage },
    /// Nothing comes after this.
    MessageStop {},
}

/// What is added to a block.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "AnthropicDelta")]
pub enum Delta {
    /// To what the model says.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// To what it thinks.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// To the input of a tool: a piece of its JSON.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// How a message ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicEnding")]
pub struct Ending {
    pub stop_reason: &'static str,
    pub stop_sequence: Option<String>,
}

impl MessageEvent {
    /// The frame that carries it.
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
