//! A chat response as a stream: the role, pieces of the answer, the finish reason of each choice,
//! usage if requested, and `[DONE]`.

use protocol::{FailureKind, FinishReason, GenerateEvent, Logprob};
use schemars::JsonSchema;
use serde::Serialize;

use super::answer::CallOut;
use super::{call_id, finish_reason};
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::usage::ChunkUsage;
use crate::openai::{ErrorResponse, Head, Usage};
use crate::{Frame, ToolCall};

/// A chunk of the stream. The last chunk with `usage` has no choices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChatChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "ChunkUsage::is_unwanted")]
    #[schemars(with = "Option<Usage>")]
    usage: ChunkUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct ChunkChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallOut>,
}

/// Converts the events of one or more generations to the frames of one stream.
#[derive(Clone, Debug)]
pub struct ChatStream {
    head: Head,
    with_usage: bool,
    with_logprobs: bool,
    usage: Usage,
    /// Number of tool calls in each choice so far.
    calls: Vec<usize>,
    /// Number of choices that have not ended.
    open: usize,
}

impl ChatStream {
    /// Creates a stream with this number of choices.
    pub fn new(head: Head, choices: u32, with_usage: bool, with_logprobs: bool) -> Self {
        let (head, choices) = (Head { object: "chat.completion.chunk", ..head }, choices as usize);
        Self { head, with_usage, with_logprobs, usage: Usage::default(), calls: vec![0; choices], open: choices }
    }

    /// Returns the first frames, which carry the role.
    pub fn begin(&self) -> Vec<Frame> {
        let delta = || Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        (0..self.calls.len() as u32).map(|choice| self.piece(choice, delta(), Vec::new(), None)).collect()
    }

    /// Converts an event of a choice to frames. The stream is complete after the last choice ends.
    /// An error ends it early.
    pub fn event(&mut self, choice: u32, event: GenerateEvent) -> Vec<Frame> {
        match event {
            GenerateEvent::Text { text, logprobs } => {
                let delta = Delta { content: Some(text), ..Delta::default() };
                vec![self.piece(choice, delta, logprobs, None)]
            }
            GenerateEvent::Thinking { text, logprobs } => {
                let delta = Delta { reasoning: Some(text), ..Delta::default() };
                vec![self.piece(choice, delta, logprobs, None)]
            }
            GenerateEvent::ToolCall { name, arguments, logprobs } => {
                let call = self.call(choice, ToolCall { name, arguments });
                vec![self.piece(choice, Delta { tool_calls: vec![call], ..Delta::default() }, logprobs, None)]
            }
            GenerateEvent::Done { reason, usage, .. } => self.end(choice, reason, usage),
            GenerateEvent::Error { error, kind } => {
                let bad_request = kind == FailureKind::BadRequest;
                vec![ErrorResponse::new(if bad_request { 400 } else { 500 }, error).frame()]
            }
        }
    }

    fn call(&mut self, choice: u32, call: ToolCall) -> CallOut {
        let mut index = 0;
        if let Some(count) = self.calls.get_mut(choice as usize) {
            index = *count;
            *count += 1;
        }
        CallOut::new(call_id(&self.head, choice, index), Some(index), call)
    }

    fn end(&mut self, choice: u32, reason: FinishReason, usage: protocol::Usage) -> Vec<Frame> {
        self.usage.add(usage, self.open == self.calls.len());
        self.open = self.open.saturating_sub(1);
        let calls_tools = self.calls.get(choice as usize).is_some_and(|count| *count > 0);
        let reason = finish_reason(reason, calls_tools);
        let mut frames = vec![self.piece(choice, Delta::default(), Vec::new(), Some(reason))];
        if self.open == 0 {
            if self.with_usage {
                let usage = ChunkUsage::Known(self.usage);
                frames.push(Frame::data(&ChatChunk { head: &self.head, choices: Vec::new(), usage }));
            }
            frames.push(Frame::done());
        }
        frames
    }

    fn piece(&self, index: u32, delta: Delta, logprobs: Vec<Logprob>, finish_reason: Option<&'static str>) -> Frame {
        let logprobs = (self.with_logprobs && !logprobs.is_empty()).then(|| ChatLogprobs::new(logprobs));
        let choices = vec![ChunkChoice { index, delta, logprobs, finish_reason }];
        Frame::data(&ChatChunk { head: &self.head, choices, usage: ChunkUsage::unknown(self.with_usage) })
    }
}
