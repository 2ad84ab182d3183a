//! The complete result of a generation, assembled from its events.

use protocol::{FinishReason, GenerateEvent, Logprob, Usage};
use serde_json::{Map, Value};

/// The response of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollectedAnswer {
    /// The answer text, without thinking and tool calls.
    pub text: String,
    /// The reasoning that the model produced before the answer.
    pub thinking: String,
    /// Tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Log-probabilities of all tokens, if the request asked for them.
    pub logprobs: Vec<Logprob>,
    /// Why the generation ended; `None` while it is running.
    pub reason: Option<FinishReason>,
    /// Counts and times; known once the generation ends.
    pub usage: Usage,
    /// The tokens of the prompt and the answer, if the request asked for them.
    pub tokens: Vec<u32>,
    /// The stop string that ended the generation, if one did.
    pub stop: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// The arguments, a JSON object.
    pub arguments: Map<String, Value>,
}

impl CollectedAnswer {
    /// Adds the next event. Ignores errors: the caller reports an error in place of the response.
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
