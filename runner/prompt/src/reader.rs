//! Reads an answer as it comes: what is text, what is thinking, and what calls a tool.
//!
//! However the text is cut into pieces, the parts add up to the same. No part of a mark is ever told as text before it is
//! clear that it is none, and nothing else is held back but calls, and blanks before marks. What looks like a call and
//! cannot be read as one is text.

mod calls;
mod dialect;
mod harmony;
mod marks;
mod parts;
mod tagged;
#[cfg(test)]
mod tests;
mod tools;

pub use dialect::{Dialect, Tags};
pub use parts::Part;
pub use tools::Tools;

pub(crate) use calls::is_name;
pub(crate) use marks::first as first_mark;

use dialect::Form;
use harmony::Harmony;
use tagged::Tagged;

/// A call that is longer, in bytes, is text.
const MAX_CALL: usize = 1 << 20;

/// What is to be told apart.
#[derive(Clone, Debug, Default)]
pub struct Reading<'r> {
    /// The prompt as it was rendered: it may have begun the answer, or its thinking.
    pub prompt: &'r str,
    /// The tools that the prompt offers; without any, nothing is read as a call.
    pub tools: Tools,
    /// Whether thinking is told apart; else it is text with its tags. Harmony's channels are told apart always, because
    /// their headers are never what a client wants to see.
    pub thinking: bool,
}

/// Turns an answer's text into parts.
#[derive(Clone, Debug)]
pub struct OutputReader(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Plain,
    Tagged(Box<Tagged>),
    Harmony(Box<Harmony>),
}

impl OutputReader {
    /// A reader for one answer in this dialect.
    pub fn new(dialect: &Dialect, reading: Reading<'_>) -> Self {
        let tags = dialect.thinking().filter(|_| reading.thinking);
        let calls = dialect.calls.filter(|_| !reading.tools.is_empty());
        Self(match dialect.form {
            Form::Harmony => Kind::Harmony(Box::new(Harmony::new(reading.prompt))),
            _ if tags.is_none() && calls.is_none() => Kind::Plain,
            _ => Kind::Tagged(Box::new(Tagged::new(tags, calls, reading.prompt, reading.tools))),
        })
    }

    /// Takes more text; tells what is clear.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        match &mut self.0 {
            Kind::Plain if text.is_empty() => Vec::new(),
            Kind::Plain => vec![Part::Text(text.to_owned())],
            Kind::Tagged(reader) => reader.push(text),
            Kind::Harmony(reader) => reader.push(text),
        }
    }

    /// Nothing follows: tells what was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        match &mut self.0 {
            Kind::Plain => Vec::new(),
            Kind::Tagged(reader) => reader.finish(),
            Kind::Harmony(reader) => reader.finish(),
        }
    }

    /// Whether everything is text: no mark means anything.
    pub fn is_plain(&self) -> bool {
        matches!(self.0, Kind::Plain)
    }

    /// Whether what comes next is thinking.
    pub fn is_thinking(&self) -> bool {
        match &self.0 {
            Kind::Plain => false,
            Kind::Tagged(reader) => reader.is_thinking(),
            Kind::Harmony(reader) => reader.is_thinking(),
        }
    }

    /// Whether what comes next is the answer: where a format holds. Thinking and headers are free.
    pub fn is_answering(&self) -> bool {
        match &self.0 {
            Kind::Plain => true,
            Kind::Tagged(reader) => !reader.is_thinking(),
            Kind::Harmony(reader) => reader.is_answering(),
        }
    }
}
