//! A message as a stream: the message starts, each block is opened, filled and closed, the message
//! ends.
//!
//! The number of prompt tokens is only known at the end. The first event reports 0, the last but
//! one the true number.

use protocol::{FailureKind, FinishReason, GenerateEvent};
use serde_json::Value;

use super::event::{Delta, Ending, MessageEvent};
use super::message::{Block, Message, Usage, call_id};
use super::{ErrorResponse, Limits};
use crate::Frame;

/// Converts generation events to the server-sent events of a stream.
#[derive(Clone, Debug)]
pub struct MessageStream {
    message: Message,
    limits: Limits,
    /// Index of the next block.
    index: usize,
    /// Kind of the open block, if one is open. Its index is `index` - 1.
    open: Option<Kind>,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
}

impl MessageStream {
    /// Creates a stream for a message without content.
    pub fn new(message: Message, limits: Limits) -> Self {
        Self { message, limits, index: 0, open: None, calls: 0 }
    }

    /// Returns the events that start the stream.
    pub fn begin(&self) -> Vec<Frame> {
        vec![MessageEvent::MessageStart { message: self.message.clone() }.frame(), MessageEvent::Ping {}.frame()]
    }

    /// Converts a generation event to frames. The stream ends with `Done` or an error.
    pub fn event(&mut self, event: GenerateEvent) -> Vec<Frame> {
        let mut frames = Vec::new();
        match event {
            // An empty text carries log-probabilities only, which this API does not have.
            GenerateEvent::Text { text, .. } if text.is_empty() => {}
            GenerateEvent::Text { text, .. } => {
                self.piece(Kind::Text, Delta::Text { text }, &mut frames);
            }
            GenerateEvent::Thinking { text, .. } => {
                self.piece(Kind::Thinking, Delta::Thinking { thinking: text }, &mut frames);
            }
            GenerateEvent::ToolCall { name, arguments, .. } => {
                self.call(name, Value::Object(arguments).to_string(), &mut frames);
            }
            GenerateEvent::Done { reason, usage, stop, .. } => self.end(reason, usage, stop, &mut frames),
            GenerateEvent::Error { error, kind } => {
                let bad_request = kind == FailureKind::BadRequest;
                frames.push(ErrorResponse::new(if bad_request { 400 } else { 500 }, error).frame());
            }
        }
        frames
    }

    fn piece(&mut self, kind: Kind, delta: Delta, frames: &mut Vec<Frame>) {
        if self.open != Some(kind) {
            self.close(frames);
            let block = match kind {
                Kind::Thinking => Block::Thinking { thinking: String::new(), signature: String::new() },
                Kind::Text => Block::Text { text: String::new() },
            };
            self.start(block, frames);
            self.open = Some(kind);
        }
        self.delta(delta, frames);
    }

    fn start(&mut self, content_block: Block, frames: &mut Vec<Frame>) {
        frames.push(MessageEvent::ContentBlockStart { index: self.index, content_block }.frame());
        self.index += 1;
    }

    fn delta(&self, delta: Delta, frames: &mut Vec<Frame>) {
        frames.push(MessageEvent::ContentBlockDelta { index: self.index.saturating_sub(1), delta }.frame());
    }

    fn stop(&self, frames: &mut Vec<Frame>) {
        frames.push(MessageEvent::ContentBlockStop { index: self.index.saturating_sub(1) }.frame());
    }

    fn close(&mut self, frames: &mut Vec<Frame>) {
        if self.open.take().is_some() {
            self.stop(frames);
        }
    }

    fn call(&mut self, name: String, arguments: String, frames: &mut Vec<Frame>) {
        self.close(frames);
        let id = call_id(&self.message.id, self.calls);
        self.calls += 1;
        self.start(Block::ToolUse { id, name, input: serde_json::Map::new() }, frames);
        self.delta(Delta::InputJson { partial_json: arguments }, frames);
        self.stop(frames);
    }

    fn end(&mut self, reason: FinishReason, usage: protocol::Usage, stop: Option<String>, frames: &mut Vec<Frame>) {
        self.close(frames);
        let stop_sequence = self.limits.own_stop(stop);
        let reason = self.limits.stop_reason(reason, self.calls > 0, usage.tokens, stop_sequence.is_some());
        let delta = Ending { stop_reason: reason, stop_sequence };
        frames.push(MessageEvent::MessageDelta { delta, usage: Usage::from(usage) }.frame());
        frames.push(MessageEvent::MessageStop {}.frame());
    }
}
