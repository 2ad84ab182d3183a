//! `usage`: token counts of prompts and answers.

use schemars::JsonSchema;
use serde::Serialize;

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiUsage")]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    pub prompt_tokens_details: PromptTokens,
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiPromptTokens")]
pub struct PromptTokens {
    /// Prompt tokens found in the KV cache.
    pub cached_tokens: u64,
    /// Lode extension: prompt tokens that were dropped because the prompt did not fit the context.
    #[serde(skip_serializing_if = "is_zero")]
    pub truncated_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Usage {
    /// Adds a generation. A prompt that several generations share counts once, with the first of
    /// them.
    pub fn add(&mut self, usage: protocol::Usage, is_first_of_prompt: bool) {
        if is_first_of_prompt {
            self.prompt_tokens += usage.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += usage.cached_tokens;
            self.prompt_tokens_details.truncated_tokens += usage.truncated_tokens;
        }
        self.completion_tokens += usage.tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// `usage` of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum ChunkUsage {
    /// The request did not ask for usage; the field is omitted.
    Unwanted,
    /// Usage is requested but not known yet: `null`.
    Unknown(()),
    /// The total usage, in the last chunk.
    Known(Usage),
}

impl ChunkUsage {
    pub(super) fn is_unwanted(&self) -> bool {
        *self == Self::Unwanted
    }

    /// Returns the value for chunks before the last.
    pub(super) fn unknown(wanted: bool) -> Self {
        if wanted { Self::Unknown(()) } else { Self::Unwanted }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_counts_once() {
        let one = protocol::Usage { prompt_tokens: 5, cached_tokens: 2, tokens: 3, ..protocol::Usage::default() };
        let mut usage = Usage::default();
        usage.add(one, true);
        usage.add(one, false);
        let document = json!({
            "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 2},
        });
        assert_eq!(serde_json::to_value(usage).expect("JSON"), document);
        usage.add(protocol::Usage { truncated_tokens: 4, ..one }, true);
        assert_eq!(serde_json::to_value(usage).expect("JSON")["prompt_tokens_details"]["truncated_tokens"], 4);
    }
}
