//! The events of a stream: what they have in common, and what each says.

use schemars::JsonSchema;
use serde::Serialize;

use super::Response;
use super::document::{Item, Part};
use crate::Frame;
use crate::openai::logprobs::TokenLogprob;

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ResponseEvent<'a> {
    /// Its name: `response.created`, `response.output_text.delta`, …
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Counts from 0.
    pub(super) sequence_number: u64,
    #[serde(flatten)]
    pub(super) fields: Fields<'a>,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Fields<'a> {
    /// The whole response, as it is now.
    Response { response: &'a Response },
    /// An item that was begun, or is complete.
    Item { output_index: usize, item: Item },
    /// A part of an item that was begun, or is complete.
    Part { item_id: String, output_index: usize, content_index: usize, part: Part },
    /// A piece of a text, or of the arguments of a call.
    Delta {
        item_id: String,
        output_index: usize,
        /// Calls have no parts.
        #[serde(skip_serializing_if = "Option::is_none")]
        content_index: Option<usize>,
        delta: String,
        /// What the model says has them, what it thinks has not.
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// A text that is complete.
    Text {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// The arguments of a call that are complete.
    Arguments { item_id: String, output_index: usize, name: String, arguments: String },
    /// The response broke off.
    Error { code: &'static str, message: String, param: Option<String> },
}

impl ResponseEvent<'_> {
    /// The frame that carries it.
    pub(super) fn frame(&self) -> Frame {
        Frame::named(self.kind, self)
    }
}
