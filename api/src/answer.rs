//! A generation that is over: its events, put together.

use protocol::{FinishReason, GenerateEvent, Logprob, Usage};
use serde_json::{Map, Value};

/// What a model has answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// What it thought before.
    pub thinking: String,
    /// Calls of tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Of all tokens, where they were asked for.
    pub logprobs: Vec<Logprob>,
    /// Why it ended; none as long as it has not.
    pub reason: Option<FinishReason>,
    /// Counts and times; known at the end.
    pub usage: Usage,
    /// The tokens of prompt and answer, where they were asked for.
    pub tokens: Vec<u32>,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// An object.
    pub arguments: Map<String, Value>,
}

impl Answer {
    /// Takes the next event. An error is not part of an answer: the caller tells it instead of the answer.
    pub fn push(&mut self, event: GenerateEvent) {
        match event {
            GenerateEvent::Text { text, logprobs } => {
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            GenerateEvent::Thinking { text, logprobs } => {
                self.thinking.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            GenerateEvent::ToolCall { name, arguments, logprobs } => {
                self.tool_calls.push(ToolCall { name, arguments });
                self.logprobs.extend(logprobs);
            }
            GenerateEvent::Done { reason, usage, tokens, stop } => {
                self.stop = stop;
                self.reason = Some(reason);
                self.usage = usage;
                self.tokens = tokens;
            }
            GenerateEvent::Error { .. } => {}
        }
    }
}
