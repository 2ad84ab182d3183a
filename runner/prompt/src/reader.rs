//! Incremental parsing of an answer into text, thinking, and tool calls.
//!
//! The parts are the same however the text is split into pieces. The reader holds back text that
//! could be part of a mark until this is decided, calls, and blanks before marks, but nothing else.
//! A malformed call is treated as text.

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

/// Maximum length of a call in bytes; a longer one is treated as text.
const MAX_CALL: usize = 1 << 20;

/// Options of a reader.
#[derive(Clone, Debug, Default)]
pub struct Reading<'r> {
    /// The rendered prompt, which may already contain the beginning of the answer or of its
    /// thinking.
    pub prompt: &'r str,
    /// The tools that the prompt offers; without tools, no text is parsed as a call.
    pub tools: Tools,
    /// Whether thinking is separated; otherwise it is text, including its tags. Harmony's channels
    /// are always separated, because clients never need their headers.
    pub thinking: bool,
}

/// Splits an answer's text into parts.
#[derive(Clone, Debug)]
pub struct OutputReader(ReaderKind);

#[derive(Clone, Debug)]
enum ReaderKind {
    Plain,
    Tagged(Box<Tagged>),
    Harmony(Box<Harmony>),
}

impl OutputReader {
    /// Creates a reader for one answer in this dialect.
    pub fn new(dialect: &Dialect, reading: Reading<'_>) -> Self {
        let tags = dialect.thinking().filter(|_| reading.thinking);
        let calls = dialect.calls.filter(|_| !reading.tools.is_empty());
        Self(match dialect.form {
            Form::Harmony => ReaderKind::Harmony(Box::new(Harmony::new(reading.prompt))),
            _ if tags.is_none() && calls.is_none() => ReaderKind::Plain,
            _ => ReaderKind::Tagged(Box::new(Tagged::new(tags, calls, reading.prompt, reading.tools))),
        })
    }

    /// Adds text; returns the parts that are decided.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        match &mut self.0 {
            ReaderKind::Plain if text.is_empty() => Vec::new(),
            ReaderKind::Plain => vec![Part::Text(text.to_owned())],
            ReaderKind::Tagged(reader) => reader.push(text),
            ReaderKind::Harmony(reader) => reader.push(text),
        }
    }

    /// Ends the answer; returns the text that was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        match &mut self.0 {
            ReaderKind::Plain => Vec::new(),
            ReaderKind::Tagged(reader) => reader.finish(),
            ReaderKind::Harmony(reader) => reader.finish(),
        }
    }

    /// Whether the reader treats everything as text and knows no marks.
    pub fn is_plain(&self) -> bool {
        matches!(self.0, ReaderKind::Plain)
    }

    /// Whether the text that follows is thinking.
    pub fn is_thinking(&self) -> bool {
        match &self.0 {
            ReaderKind::Plain => false,
            ReaderKind::Tagged(reader) => reader.is_thinking(),
            ReaderKind::Harmony(reader) => reader.is_thinking(),
        }
    }

    /// Whether the text that follows is the answer, to which a format applies. Thinking and headers
    /// are not constrained.
    pub fn is_answering(&self) -> bool {
        match &self.0 {
            ReaderKind::Plain => true,
            ReaderKind::Tagged(reader) => !reader.is_thinking(),
            ReaderKind::Harmony(reader) => reader.is_answering(),
        }
    }
}
