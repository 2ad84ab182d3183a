//! Prompts: text to tokens and back, conversations to text, what an answer may be, what it says, and where it ends.
//!
//! Everything here is the runner's: the daemon never tokenizes and never renders a template.

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

/// The longest text that is cut into tokens, and that a template may make, in bytes: half a million tokens of prose. Libraries of
/// tokenizers take two hundred times a text's length, and twice that for one of digits.
pub const MAX_TEXT: usize = 2 << 20;

pub use constraint::{Constraint, ConstraintFactory};
pub use error::Error;
pub use insert::insert;
pub use reader::{Dialect, OutputReader, Part, Reading, Tools};
pub use stop::StopFilter;
pub use stream::{Markers, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::{Pair, PairForm, Special, Tokenizer};
