//! Log-probabilities of tokens, in the format of chat and responses, and in the older format of
//! completions.

use protocol::Logprob;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Replaces the logarithm of 0, because JSON has no infinity.
const LEAST: f32 = -9999.0;

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiTokenLogprob")]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens at a position.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiTopLogprob")]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

impl From<Logprob> for TokenLogprob {
    fn from(token: Logprob) -> Self {
        let top = |token: Logprob| TopLogprob {
            logprob: told(token.logprob),
            bytes: token.text.clone().into_bytes(),
            token: token.text,
        };
        Self {
            logprob: told(token.logprob),
            bytes: token.text.clone().into_bytes(),
            token: token.text,
            top_logprobs: token.top.into_iter().map(top).collect(),
        }
    }
}

fn told(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LEAST }
}

/// `logprobs` of a choice of a chat.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    /// Log-probabilities of all tokens in the answer.
    pub content: Vec<TokenLogprob>,
    /// Always null: models here express a refusal as plain text.
    pub refusal: Option<Vec<TokenLogprob>>,
}

impl ChatLogprobs {
    /// Creates the document for these tokens.
    pub(super) fn new(tokens: Vec<Logprob>) -> Self {
        Self { content: tokens.into_iter().map(TokenLogprob::from).collect(), refusal: None }
    }
}

/// `logprobs` of a completion: four lists of the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    /// Alternatives by token text. If two tokens have the same text, the more likely one is kept.
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Offset of each token in the text of the choice, in characters.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Creates the document for these tokens. The first token starts at `offset`; on return,
    /// `offset` is the start of the next one.
    pub(super) fn new(tokens: Vec<Logprob>, offset: &mut usize) -> Self {
        let mut all = Self::default();
        for token in tokens {
            all.text_offset.push(*offset);
            *offset += token.text.chars().count();
            let mut top = Map::new();
            for other in token.top {
                top.entry(other.text).or_insert_with(|| told(other.logprob).into());
            }
            all.top_logprobs.push(top);
            all.token_logprobs.push(told(token.logprob));
            all.tokens.push(token.text);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(text: &str, logprob: f32, top: Vec<Logprob>) -> Logprob {
        Logprob { id: 1, text: text.to_owned(), logprob, top }
    }

    #[test]
    fn both_forms() {
        let tokens = vec![
            token("é", -0.5, vec![token("é", -0.5, vec![]), token("a", f32::NEG_INFINITY, vec![])]),
            token("b", -1.0, vec![]),
        ];
        let chat = json!({"content": [
            {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "a", "logprob": -9999.0, "bytes": [97]},
            ]},
            {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []},
        ], "refusal": null});
        assert_eq!(serde_json::to_value(ChatLogprobs::new(tokens.clone())).expect("JSON"), chat);
        let mut offset = 3;
        let completion = json!({
            "tokens": ["é", "b"], "token_logprobs": [-0.5, -1.0],
            "top_logprobs": [{"é": -0.5, "a": -9999.0}, {}], "text_offset": [3, 4],
        });
        assert_eq!(serde_json::to_value(CompletionLogprobs::new(tokens, &mut offset)).expect("JSON"), completion);
        assert_eq!(offset, 5);
    }
}
