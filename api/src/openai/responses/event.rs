//! The events of a stream: their common fields and their variants.

use schemars::JsonSchema;
use serde::Serialize;

use super::Response;
use super::document::{Item, Part};
use crate::Frame;
use crate::openai::logprobs::TokenLogprob;

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ResponseEvent<'a> {
    /// Name of the event: `response.created`, `response.output_text.delta`, …
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Number of the event in the stream, from 0.
    pub(super) sequence_number: u64,
    #[serde(flatten)]
    pub(super) fields: Fields<'a>,
}

/// The fields of an event.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Fields<'a> {
    /// The response in its current state.
    Response { response: &'a Response },
    /// An item that starts or is complete.
    Item { output_index: usize, item: Item },
    /// A part of an item that starts or is complete.
    Part { item_id: String, output_index: usize, content_index: usize, part: Part },
    /// A piece of a text or of the arguments of a call.
    Delta {
        item_id: String,
        output_index: usize,
        /// Absent for calls, which have no parts.
        #[serde(skip_serializing_if = "Option::is_none")]
        content_index: Option<usize>,
        delta: String,
        /// Log-probabilities of message text; absent for reasoning.
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// A complete text.
    Text {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// The complete arguments of a call.
    Arguments { item_id: String, output_index: usize, name: String, arguments: String },
    /// An error that ends the response.
    Error { code: &'static str, message: String, param: Option<String> },
}

impl ResponseEvent<'_> {
    /// Returns the server-sent event for this document.
    pub(super) fn frame(&self) -> Frame {
        Frame::named(self.kind, self)
    }
}
