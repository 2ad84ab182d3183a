//! The request for completions.

use protocol::Prompt;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::openai::chat::StreamOptions;
use crate::openai::sampling::{Sampling, top_logprobs};
use crate::{Demand, Refusal};

/// Most prompts of a request.
const MOST_PROMPTS: usize = 256;

/// Texts, or what they were cut into.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of tokens or a list of lists of tokens")]
pub enum Texts {
    /// A text.
    One(String),
    /// Several.
    Several(Vec<String>),
    /// Tokens of a text.
    Tokens(Vec<u32>),
    /// Tokens of several.
    SeveralTokens(Vec<Vec<u32>>),
}

/// Body of `POST /v1/completions`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Option<Texts>,
    pub suffix: Option<String>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    pub sampling: Sampling,
    pub max_tokens: Option<i64>,
    pub best_of: Option<u32>,
    pub echo: Option<bool>,
    pub logprobs: Option<u32>,
}

/// A prompt, and what the answer begins with where the prompt is to be part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionPrompt {
    /// What to go on from.
    pub prompt: Prompt,
    /// Whether the text of the prompt comes first. A prompt of tokens is turned into text by the model's tokenizer.
    pub echo: bool,
}

impl CompletionRequest {
    /// Whether the answer is a stream.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with its usage.
    pub fn wants_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Whether choices have log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// How many choices are wanted of each prompt.
    ///
    /// # Errors
    /// None, too many, or fewer than are to be generated.
    pub fn choices(&self) -> Result<u32, Refusal> {
        let n = self.sampling.choices()?;
        match self.best_of {
            // Choosing needs a score of whole answers, which would be another model.
            Some(best_of) if best_of != n => Err(Refusal::new(
                "best_of",
                format!("best_of is {best_of} and n is {n}; only equal ones are supported"),
            )),
            _ => Ok(n),
        }
    }

    /// What is asked of the model: the prompts, and how to generate for each.
    ///
    /// # Errors
    /// The field that asks for what cannot be had.
    pub fn translate(self) -> Result<(Vec<CompletionPrompt>, Demand), Refusal> {
        let echo = self.echo.unwrap_or(false);
        if echo && self.logprobs.is_some() {
            return Err(Refusal::new(
                "echo",
                "echo with logprobs is not supported: the prompt's tokens are not scored",
            ));
        }
        let top_logprobs = self.logprobs.map(|count| top_logprobs("logprobs", count, 20)).transpose()?;
        let demand = Demand { top_logprobs, ..self.sampling.demand(self.max_tokens)? };
        let suffix = self.suffix.filter(|suffix| !suffix.is_empty());
        let text = |text| match &suffix {
            Some(suffix) => Prompt::Insert { prefix: text, suffix: suffix.clone() },
            None => Prompt::Text { text },
        };
        let tokens = |tokens: Vec<u32>| match &suffix {
            Some(_) => Err(Refusal::new("suffix", "a suffix needs a prompt that is text")),
            None if tokens.is_empty() => Err(Refusal::new("prompt", "a prompt has no tokens")),
            None => Ok(Prompt::Tokens { tokens }),
        };
        let prompts = match self.prompt.ok_or_else(|| Refusal::new("prompt", "a completion needs a prompt"))? {
            Texts::One(one) => vec![text(one)],
            Texts::Several(several) => several.into_iter().map(text).collect(),
            Texts::Tokens(one) => vec![tokens(one)?],
            Texts::SeveralTokens(several) => several.into_iter().map(tokens).collect::<Result<_, _>>()?,
        };
        if prompts.is_empty() || prompts.len() > MOST_PROMPTS {
            return Err(Refusal::new("prompt", format!("{} prompts, expected 1 to {MOST_PROMPTS}", prompts.len())));
        }
        Ok((prompts.into_iter().map(|prompt| CompletionPrompt { prompt, echo }).collect(), demand))
    }
}
