//! Constraints: which tokens may come next where an answer must be JSON, fit a schema, or call a tool.
//!
//! A grammar runs over the bytes of the vocabulary's tokens, so that a token counts as allowed exactly if the text with it
//! can still be completed. Between two tokens of JSON at most a line break with its indent may stand: small models would
//! write blanks for ever. What a schema leaves open is in `schema.rs`.

#[cfg(test)]
mod corpus;
mod grammar;
mod schema;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use protocol::{Format, ToolChoice};

use crate::tokenizer::TokenBytes;
use crate::{Dialect, Error, Tokenizer, Tools};

/// States of the automaton that an answer is held against: one or two kilobytes each, of which no useful schema needs as many.
const MAX_STATES: usize = 20_000;

/// Makes constraints for the vocabulary of one tokenizer. It takes about a second and tens of MiB for a large vocabulary, so
/// there is one for a model, made when the first constraint is asked for. Several threads may use it.
pub struct ConstraintFactory {
    parsers: ParserFactory,
}

/// What may come next in one answer.
pub struct Constraint {
    matcher: Matcher,
    /// May come instead of the first token, and is no part of what is constrained.
    first: Option<u32>,
}

impl std::fmt::Debug for ConstraintFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConstraintFactory").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("first", &self.first).finish_non_exhaustive()
    }
}

impl ConstraintFactory {
    /// Reads the vocabulary; `ends` are the tokens that end an answer. Refused where the bytes of tokens are not known.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, Error> {
        let mut words: Vec<Vec<u8>> = tokenizer.token_bytes()?.into_iter().map(word).collect();
        let mut ends: Vec<u32> = ends.iter().copied().filter(|end| (*end as usize) < words.len()).collect();
        for end in &ends {
            words[*end as usize] = special(&format!("<end {end}>"));
        }
        if ends.is_empty() {
            // Answers end when they are complete; no token of the vocabulary says so.
            ends.push(words.len() as u32);
            words.push(special("<end>"));
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut parsers = ParserFactory::new_simple(&environment).map_err(|e| Error::Format(e.to_string()))?;
        let limits = parsers.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_STATES;
        Ok(Self { parsers })
    }

    /// An answer in this format. What of a schema cannot be held to is refused by name; `oneOf` allows what fits several.
    pub fn constraint(&self, format: &Format) -> Result<Constraint, Error> {
        self.build(grammar::of(format)?)
    }

    /// An answer that calls a tool, in the model's dialect: any of them, or the one that is named. Refused where there is no
    /// such tool.
    pub fn call(
        &self,
        tokenizer: &Tokenizer,
        dialect: &Dialect,
        tools: &Tools,
        choice: &ToolChoice,
    ) -> Result<Constraint, Error> {
        self.build(grammar::call(tokenizer, dialect, tools, choice)?)
    }

    fn build(&self, grammar: TopLevelGrammar) -> Result<Constraint, Error> {
        // The schema is a client's: whatever the library makes of it must not end the process.
        let parser = catch_unwind(AssertUnwindSafe(|| self.parsers.create_parser(grammar)))
            .map_err(|_| Error::Format("the schema cannot be read".to_owned()))?
            .map_err(|e| Error::Format(told(&format!("{e:#}"))))?;
        Ok(Constraint { matcher: Matcher::new(Ok(parser)), first: None })
    }
}

impl Constraint {
    /// Lets this token come instead of the first one: the tag that begins thinking, where the model may think before.
    pub fn or_first(&mut self, token: u32) {
        self.first = Some(token);
    }

    /// Takes every token that may not come next out of the choice: its logit becomes −∞. `logits` may be longer than the
    /// vocabulary.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.allowed()?;
        for (id, logit) in logits.iter_mut().enumerate() {
            if allowed.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// The tokens that may come next as bits, the first in the lowest bit; those behind the last may not.
    pub fn allowed(&mut self) -> Result<Vec<u32>, Error> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(failed)?;
        let count = allowed.len();
        let mut words = allowed.as_slice()[..count.div_ceil(32)].to_vec();
        if let Some(last) = words.last_mut().filter(|_| !count.is_multiple_of(32)) {
            *last &= (1 << (count % 32)) - 1;
        }
        if let Some(first) = self.first {
            let word = first as usize / 32;
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (first % 32);
        }
        Ok(words)
    }

    /// Goes on with a token that was chosen. Refused where it was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        let first = self.first.take();
        if first == Some(token) {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(failed)
    }

    /// Whether nothing but the end may follow.
    pub fn is_finished(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Whether the answer may end here.
    pub fn can_end(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }
}

/// What the library says, without the traces of its own panics.
fn told(error: &str) -> String {
    error.split("<backtrace>").next().unwrap_or(error).trim_end().to_owned()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Format(format!("the answer left it: {error:#}"))
}

fn word(token: TokenBytes) -> Vec<u8> {
    match token {
        // No text has this byte, so such a token would be taken for a special one.
        TokenBytes::Text(bytes) if bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) => bytes,
        TokenBytes::Text(_) => Vec::new(),
        TokenBytes::Special(name) if name.is_empty() => Vec::new(),
        TokenBytes::Special(name) => special(&name),
    }
}

fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}
