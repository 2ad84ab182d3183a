//! The request for completions.

use protocol::Prompt;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::openai::chat::StreamOptions;
use crate::openai::sampling::{Sampling, top_logprobs};
use crate::{GenerationOptions, Refusal};

/// Maximum number of prompts in a request.
const MOST_PROMPTS: usize = 256;

/// One or more texts, as strings or as token ids.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of tokens or a list of lists of tokens")]
pub enum Texts {
    /// A text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
    /// Token ids of a text.
    Tokens(Vec<u32>),
    /// Token ids of several texts.
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

/// A prompt and whether the response repeats it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionPrompt {
    /// The prompt to continue.
    pub prompt: Prompt,
    /// True if the response starts with the text of the prompt. A prompt of token ids is decoded
    /// with the model's tokenizer.
    pub echo: bool,
}

impl CompletionRequest {
    /// Returns true if the response is a stream.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Returns true if the stream ends with token usage.
    pub fn wants_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns true if choices include log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// Returns the number of choices for each prompt.
    ///
    /// # Errors
    /// Fails if the number is 0, too large, or different from `best_of`.
    pub fn choices(&self) -> Result<u32, Refusal> {
        let n = self.sampling.choices()?;
        match self.best_of {
            // Choosing the best of several completions is not implemented: no score for complete
            // answers exists here.
            Some(best_of) if best_of != n => Err(Refusal::new(
                "best_of",
                format!("best_of is {best_of} and n is {n}; only equal ones are supported"),
            )),
            _ => Ok(n),
        }
    }

    /// Converts the request to prompts and the generation options for each.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(Vec<CompletionPrompt>, GenerationOptions), Refusal> {
        let echo = self.echo.unwrap_or(false);
        if echo && self.logprobs.is_some() {
            return Err(Refusal::new(
                "echo",
                "echo with logprobs is not supported: the prompt's tokens are not scored",
            ));
        }
        let top_logprobs = self.logprobs.map(|count| top_logprobs("logprobs", count, 20)).transpose()?;
        let demand = GenerationOptions { top_logprobs, ..self.sampling.demand(self.max_tokens)? };
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
