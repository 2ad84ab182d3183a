//! `usage`: tokens of prompt and answer.

use schemars::JsonSchema;
use serde::Serialize;

/// Tokens that an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiUsage")]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    pub prompt_tokens_details: PromptTokens,
}

/// More of the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiPromptTokens")]
pub struct PromptTokens {
    /// Of them, found in the KV cache.
    pub cached_tokens: u64,
    /// Lode's own: tokens of the prompt that were dropped because they did not fit. Never silently.
    #[serde(skip_serializing_if = "is_zero")]
    pub truncated_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Usage {
    /// Adds a generation. A prompt that several generations go on from counts once: with the first of them.
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
    /// Nobody asked; the field is left out.
    Unwanted,
    /// It was asked for and is not known yet: `null`.
    Unknown(()),
    /// All of it, in the last chunk.
    Known(Usage),
}

impl ChunkUsage {
    pub(super) fn is_unwanted(&self) -> bool {
        *self == Self::Unwanted
    }

    /// Before the end.
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
