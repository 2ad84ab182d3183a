//! The response to a completion request.

use schemars::JsonSchema;
use serde::Serialize;

use super::finish_reason;
use crate::CollectedAnswer;
use crate::openai::logprobs::CompletionLogprobs;
use crate::openai::{Head, Usage};

/// Response of `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct Completion {
    #[serde(flatten)]
    pub head: Head,
    pub choices: Vec<Choice>,
    pub usage: Usage,
}

/// One of the generated texts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
pub struct Choice {
    pub text: String,
    pub index: u32,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
}

impl Completion {
    /// Creates the response. `answers` has `choices` entries for each prompt, in order. The string
    /// of an entry is the echoed prompt that precedes the answer.
    pub fn new(head: Head, answers: Vec<(String, CollectedAnswer)>, choices: u32, with_logprobs: bool) -> Self {
        let mut usage = Usage::default();
        let choice = |(index, (before, answer)): (u32, (String, CollectedAnswer))| {
            usage.add(answer.usage, index.is_multiple_of(choices.max(1)));
            let logprobs = with_logprobs.then(|| CompletionLogprobs::new(answer.logprobs, &mut before.chars().count()));
            // An answer without a reason broke off. The caller reports an error instead of this
            // document.
            Choice { text: before + &answer.text, index, logprobs, finish_reason: answer.reason.map(finish_reason) }
        };
        let choices = (0..).zip(answers).map(choice).collect();
        Self { head, choices, usage }
    }
}
