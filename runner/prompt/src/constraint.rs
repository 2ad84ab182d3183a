//! Constraints on the next token, for answers that must be JSON, conform to a schema, or call a
//! tool.
//!
//! A grammar runs over the bytes of the vocabulary's tokens. A token is allowed exactly if the text
//! including it can still be completed. JSON is on one line with a space after each comma and
//! colon, as Python's `json` writes it. Otherwise, small models would write blanks without end and
//! stray line breaks. For points that a schema leaves open, see `schema.rs`.

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

/// Maximum number of states of the grammar's automaton. A state takes one or two kilobytes; no
/// useful schema needs this many.
const MAX_STATES: usize = 20_000;

/// Maximum number of consecutive digits, if other tokens are allowed. A double has 17 significant
/// digits.
const MOST_DIGITS: usize = 40;

/// Creates constraints for the vocabulary of one tokenizer. Its creation takes about a second and
/// tens of MiB for a large vocabulary. There is therefore one factory per model, created for the
/// first constraint. Several threads can share it.
pub struct ConstraintFactory {
    parsers: ParserFactory,
    /// The bytes of each token.
    words: Arc<[Vec<u8>]>,
}

/// The constraint on one answer.
pub struct Constraint {
    matcher: Matcher,
    /// Token that is allowed in place of the first token and is not part of the constrained text.
    first: Option<u32>,
    words: Arc<[Vec<u8>]>,
    number: Number,
}

/// Tracks whether the answer, which is usually JSON, ends in digits of a number. Digits in strings
/// are not counted, because an identifier can be of any length.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    digits: usize,
    in_string: bool,
    escaped: bool,
}

impl Number {
    fn push(&mut self, byte: u8) {
        let was_escaped = std::mem::take(&mut self.escaped);
        match byte {
            b'\\' if self.in_string && !was_escaped => self.escaped = true,
            b'"' if !was_escaped => self.in_string = !self.in_string,
            _ => {}
        }
        self.digits = if !self.in_string && byte.is_ascii_digit() { self.digits + 1 } else { 0 };
    }
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
    /// Reads the vocabulary; `ends` are the tokens that end an answer. Fails if the bytes of the
    /// tokens are not known.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, Error> {
        let mut words: Vec<Vec<u8>> = tokenizer.token_bytes()?.into_iter().map(word).collect();
        let mut ends: Vec<u32> = ends.iter().copied().filter(|end| (*end as usize) < words.len()).collect();
        for end in &ends {
            words[*end as usize] = special(&format!("<end {end}>"));
        }
        if ends.is_empty() {
            // The vocabulary has no end token, so an answer ends when it is complete.
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
        Ok(Self { parsers, words: words.into() })
    }

    /// Creates the constraint for a format. Unsupported parts of a schema are refused by name;
    /// `oneOf` also allows values that match several alternatives.
    pub fn constraint(&self, format: &Format) -> Result<Constraint, Error> {
        self.build(grammar::of(format)?)
    }

    /// Creates a constraint that forces a tool call in the model's dialect: of any tool, or of the
    /// named one. Fails if there is no such tool.
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
        // Clients provide the schema, so a panic of the library must not end the process.
        let parser = catch_unwind(AssertUnwindSafe(|| self.parsers.create_parser(grammar)))
            .map_err(|_| Error::Format("the schema cannot be read".to_owned()))?
            .map_err(|e| Error::Format(told(&format!("{e:#}"))))?;
        Ok(Constraint {
            matcher: Matcher::new(Ok(parser)),
            first: None,
            words: self.words.clone(),
            number: Number::default(),
        })
    }
}

impl Constraint {
    /// Allows this token in place of the first one: the tag that begins thinking, if the model may
    /// think first.
    pub fn or_first(&mut self, token: u32) {
        self.first = Some(token);
    }

    /// Masks every token that is not allowed next: its logit becomes −∞. `logits` may be longer
    /// than the vocabulary.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.allowed()?;
        for (id, logit) in logits.iter_mut().enumerate() {
            if allowed.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Returns the allowed tokens as a bit set, the first token in the lowest bit. Bits after the
    /// last token are 0.
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
        self.end_digits(&mut words);
        Ok(words)
    }

    /// After many digits of a number, masks all tokens that begin with a digit, if others are
    /// allowed. No number has so many digits, but a model could write them until the answer is cut
    /// off.
    fn end_digits(&self, allowed: &mut [u32]) {
        if self.number.digits < MOST_DIGITS {
            return;
        }
        let is_digit = |id: usize| self.words.get(id).and_then(|word| word.first()).is_some_and(u8::is_ascii_digit);
        let mut kept = allowed.to_vec();
        for (at, word) in kept.iter_mut().enumerate() {
            for bit in 0..32 {
                if *word >> bit & 1 == 1 && is_digit(at * 32 + bit) {
                    *word &= !(1 << bit);
                }
            }
        }
        if kept.iter().any(|word| *word != 0) {
            allowed.copy_from_slice(&kept);
        }
    }

    /// Advances by a chosen token. Fails if it was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        let first = self.first.take();
        if first == Some(token) {
            return Ok(());
        }
        for byte in self.words.get(token as usize).into_iter().flatten() {
            self.number.push(*byte);
        }
        self.matcher.consume_token(token).map_err(failed)
    }

    /// Whether only the end may follow.
    pub fn is_finished(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Whether the answer may end here.
    pub fn can_end(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }
}

/// Returns the library's error message without the backtraces of its own panics.
fn told(error: &str) -> String {
    error.split("<backtrace>").next().unwrap_or(error).trim_end().to_owned()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Format(format!("the answer violates the format: {error:#}"))
}

fn word(token: TokenBytes) -> Vec<u8> {
    match token {
        // No UTF-8 text contains this byte; the library would take such a token for a special one.
        TokenBytes::Text(bytes) if bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) => bytes,
        TokenBytes::Text(_) => Vec::new(),
        TokenBytes::Special(name) if name.is_empty() => Vec::new(),
        TokenBytes::Special(name) => special(&name),
    }
}

fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}
