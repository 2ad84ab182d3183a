//! A message as a stream: it begins, its blocks are opened, filled and closed, it ends.
//!
//! How many tokens the prompt is becomes known at the end, so the first event says 0 and the last but one the truth.

use protocol::{FailureKind, FinishReason, GenerateEvent};
use serde_json::Value;

use super::event::{Delta, Ending, MessageEvent};
use super::message::{Block, Message, Usage, call_id};
use super::{ErrorResponse, Limits};
use crate::Frame;

/// Turns the events of a generation into the frames of a stream.
#[derive(Clone, Debug)]
pub struct MessageStream {
    message: Message,
    limits: Limits,
    /// Number of the next block.
    index: usize,
    /// The kind of the block that is open; its number is the one before the next.
    open: Option<Kind>,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
}

impl MessageStream {
    /// A message that has just begun.
    pub fn new(message: Message, limits: Limits) -> Self {
        Self { message, limits, index: 0, open: None, calls: 0 }
    }

    /// What comes first.
    pub fn begin(&self) -> Vec<Frame> {
        vec![MessageEvent::MessageStart { message: self.message.clone() }.frame(), MessageEvent::Ping {}.frame()]
    }

    /// The frames of an event. After the end or an error there are no more.
    pub fn event(&mut self, event: GenerateEvent) -> Vec<Frame> {
        let mut frames = Vec::new();
        match event {
            // Only log-probabilities, which nobody can ask for here.
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
