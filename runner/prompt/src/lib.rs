//! Prompts: text to tokens and back, conversations to text, what an answer may be, what it says, and where it ends.
//!
//! Everything here is the runner's: the daemon never tokenizes and never renders a template.

pub mod constraint;
pub mod error;
pub mod insert;
pub mod reader;
pub mod stop;
pub mod stream;
pub mod template;
pub mod tokenizer;

pub use constraint::{Constraint, ConstraintFactory};
pub use error::Error;
pub use insert::insert;
pub use reader::{Dialect, OutputReader, Part, Reading, Tools};
pub use stop::StopFilter;
pub use stream::{Markers, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::{Special, Tokenizer};
