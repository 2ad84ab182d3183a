//! The response to a chat request.

use schemars::JsonSchema;
use serde::Serialize;

use super::{call_id, finish_reason};
use crate::CollectedAnswer;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::{Head, Usage};

/// Response of `POST /v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct ChatCompletion {
    #[serde(flatten)]
    pub head: Head,
    pub choices: Vec<Choice>,
    pub usage: Usage,
}

/// One of the alternative responses.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ChatChoice")]
pub struct Choice {
    pub index: u32,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: &'static str,
}

/// The message that the model generates.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AssistantMessage {
    pub role: &'static str,
    /// Text of the answer; null if the model only calls tools.
    pub content: Option<String>,
    pub refusal: Option<String>,
    /// Reasoning of the model before the answer. The field name is Ollama's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallOut>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CallOut {
    /// Index of the call; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: FunctionOut,
}

/// The called function and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionOut {
    pub name: String,
    /// A JSON object, serialized to a string.
    pub arguments: String,
}

impl CallOut {
    pub(super) fn new(id: String, index: Option<usize>, call: crate::ToolCall) -> Self {
        let arguments = serde_json::Value::Object(call.arguments).to_string();
        Self { index, id, kind: "function", function: FunctionOut { name: call.name, arguments } }
    }
}

impl ChatCompletion {
    /// Creates the response from the choices for one prompt, in order.
    pub fn new(head: Head, answers: Vec<CollectedAnswer>, with_logprobs: bool) -> Self {
        let mut usage = Usage::default();
        for (at, answer) in answers.iter().enumerate() {
            usage.add(answer.usage, at == 0);
        }
        let choices = (0..).zip(answers).map(|(index, answer)| choice(&head, index, answer, with_logprobs)).collect();
        Self { head, choices, usage }
    }
}

fn choice(head: &Head, index: u32, answer: CollectedAnswer, with_logprobs: bool) -> Choice {
    // An answer without a reason broke off. The caller reports an error instead of this document.
    let reason = answer.reason.unwrap_or(protocol::FinishReason::Length);
    let finish_reason = finish_reason(reason, !answer.tool_calls.is_empty());
    let calls = answer.tool_calls.into_iter().enumerate();
    let tool_calls: Vec<CallOut> = calls.map(|(at, call)| CallOut::new(call_id(head, index, at), None, call)).collect();
    let says_nothing = answer.text.is_empty() && !tool_calls.is_empty();
    Choice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: (!says_nothing).then_some(answer.text),
            refusal: None,
            reasoning: Some(answer.thinking).filter(|text| !text.is_empty()),
            tool_calls,
        },
        logprobs: with_logprobs.then(|| ChatLogprobs::new(answer.logprobs)),
        finish_reason,
    }
}
