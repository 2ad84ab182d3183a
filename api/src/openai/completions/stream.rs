//! Completions as a stream.

use protocol::{FailureKind, GenerateEvent, Logprob};
use schemars::JsonSchema;
use serde::Serialize;

use super::answer::Choice;
use super::finish_reason;
use crate::Frame;
use crate::openai::logprobs::CompletionLogprobs;
use crate::openai::usage::ChunkUsage;
use crate::openai::{ErrorResponse, Head, Usage};

/// A chunk of the stream. The last chunk with `usage` has no choices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CompletionChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "ChunkUsage::is_unwanted")]
    #[schemars(with = "Option<Usage>")]
    usage: ChunkUsage,
}

/// Converts the events of generations to the frames of one stream.
#[derive(Clone, Debug)]
pub struct CompletionStream {
    head: Head,
    with_usage: bool,
    with_logprobs: bool,
    usage: Usage,
    /// Offset of the next token of each choice, in characters.
    offsets: Vec<usize>,
    /// For each prompt, true until its first choice ends.
    fresh: Vec<bool>,
    /// Number of choices that have not ended.
    open: usize,
}

impl CompletionStream {
    /// Creates a stream with `choices` choices for each of `prompts` prompts.
    pub fn new(head: Head, prompts: usize, choices: u32, with_usage: bool, with_logprobs: bool) -> Self {
        let all = prompts * choices as usize;
        let (offsets, fresh) = (vec![0; all], vec![true; prompts]);
        Self { head, with_usage, with_logprobs, usage: Usage::default(), offsets, fresh, open: all }
    }

    /// Returns the frame with the text that precedes a choice, if the response echoes the prompt.
    pub fn before(&mut self, choice: u32, text: String) -> Frame {
        if let Some(offset) = self.offsets.get_mut(choice as usize) {
            *offset += text.chars().count();
        }
        self.piece(choice, text, Vec::new(), None)
    }

    /// Converts an event of a choice to frames. The stream is complete after the last choice ends.
    /// An error ends it early.
    pub fn event(&mut self, choice: u32, event: GenerateEvent) -> Vec<Frame> {
        match event {
            // Without a template, thinking is not separate from the text, and tool calls do not
            // occur.
            GenerateEvent::Text { text, logprobs } | GenerateEvent::Thinking { text, logprobs } => {
                vec![self.piece(choice, text, logprobs, None)]
            }
            GenerateEvent::ToolCall { .. } => Vec::new(),
            GenerateEvent::Done { reason, usage, .. } => {
                let mut frames = vec![self.piece(choice, String::new(), Vec::new(), Some(finish_reason(reason)))];
                self.end(choice, usage, &mut frames);
                frames
            }
            GenerateEvent::Error { error, kind } => {
                let bad_request = kind == FailureKind::BadRequest;
                vec![ErrorResponse::new(if bad_request { 400 } else { 500 }, error).frame()]
            }
        }
    }

    fn end(&mut self, choice: u32, usage: protocol::Usage, frames: &mut Vec<Frame>) {
        let choices = (self.offsets.len() / self.fresh.len().max(1)).max(1);
        let fresh = self.fresh.get_mut(choice as usize / choices);
        self.usage.add(usage, fresh.is_some_and(|fresh| std::mem::replace(fresh, false)));
        self.open = self.open.saturating_sub(1);
        if self.open > 0 {
            return;
        }
        if self.with_usage {
            let usage = ChunkUsage::Known(self.usage);
            frames.push(Frame::data(&CompletionChunk { head: &self.head, choices: Vec::new(), usage }));
        }
        frames.push(Frame::done());
    }

    fn piece(
        &mut self,
        index: u32,
        text: String,
        logprobs: Vec<Logprob>,
        finish_reason: Option<&'static str>,
    ) -> Frame {
        let offset = self.offsets.get_mut(index as usize).filter(|_| self.with_logprobs && !logprobs.is_empty());
        let logprobs = offset.map(|offset| CompletionLogprobs::new(logprobs, offset));
        let choices = vec![Choice { text, index, logprobs, finish_reason }];
        Frame::data(&CompletionChunk { head: &self.head, choices, usage: ChunkUsage::unknown(self.with_usage) })
    }
}
