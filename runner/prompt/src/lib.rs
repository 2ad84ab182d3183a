//! Prompts and answers: tokenization, chat templates, constraints on answers, parsing of answers,
//! and stop strings.
//!
//! Only the runner uses this crate: the daemon never tokenizes and never renders a template.

pub mod constraint;
pub mod error;
pub mod insert;
pub mod reader;
#[cfg(test)]
mod reference_data;
pub mod stop;
pub mod stream;
pub mod template;
pub mod tokenizer;

/// Maximum length in bytes of a text to tokenize, and of a rendered template: half a million tokens
/// of prose. Tokenizer libraries need memory of two hundred times the text's length, and twice that
/// for a text of digits.
pub const MAX_TEXT: usize = 2 << 20;

pub use constraint::{Constraint, ConstraintFactory};
pub use error::Error;
pub use insert::insert;
pub use reader::{Dialect, OutputReader, Part, Reading, Tools};
pub use stop::StopFilter;
pub use stream::{Markers, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::{Pair, PairForm, Special, Tokenizer};
