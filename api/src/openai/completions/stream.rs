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

/// An event of the stream. The last with `usage` has no choices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CompletionChunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "ChunkUsage::is_unwanted")]
    #[schemars(with = "Option<Usage>")]
    usage: ChunkUsage,
}

/// Turns the events of generations into the frames of one stream.
#[derive(Clone, Debug)]
pub struct CompletionStream {
    head: Head,
    with_usage: bool,
    with_logprobs: bool,
    usage: Usage,
    /// Where the next token of each choice begins, in characters.
    offsets: Vec<usize>,
    /// For each prompt, whether none of its choices has ended.
    fresh: Vec<bool>,
    /// Choices that have not ended.
    open: usize,
}

impl CompletionStream {
    /// A stream of so many choices for each of so many prompts.
    pub fn new(head: Head, prompts: usize, choices: u32, with_usage: bool, with_logprobs: bool) -> Self {
        let all = prompts * choices as usize;
        let (offsets, fresh) = (vec![0; all], vec![true; prompts]);
        Self { head, with_usage, with_logprobs, usage: Usage::default(), offsets, fresh, open: all }
    }

    /// The text that a choice begins with, where the prompt is part of the answer.
    pub fn before(&mut self, choice: u32, text: String) -> Frame {
        if let Some(offset) = self.offsets.get_mut(choice as usize) {
            *offset += text.chars().count();
        }
        self.piece(choice, text, Vec::new(), None)
    }

    /// The frames of an event of a choice. After the end of the last choice the stream is complete; after an error it is
    /// over.
    pub fn event(&mut self, choice: u32, event: GenerateEvent) -> Vec<Frame> {
        match event {
            // Nothing tells thinking or calls apart where there is no template.
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
