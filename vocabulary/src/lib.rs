//! Text-related facts from a model's documents: the vocabulary, how text is split before merging,
//! special tokens, chat templates, and the abilities that templates reveal.
//!
//! Everything here is pure: the input is parsed headers and JSON. The runner tokenizes and renders.
//!
//! Defaults for values that a GGUF file omits are llama.cpp's (`llama-vocab.cpp`); each such
//! constant is defined here once.

pub mod abilities;
mod byte_pairs;
pub mod byte_ranks;
pub mod chat_templates;
mod error;
pub mod insert;
pub mod pre_tokenizer;
pub mod renderers;
mod sentence_piece;
pub mod special_tokens;
pub mod token_table;
mod vocabulary;

pub use error::Error;
pub use pre_tokenizer::PreTokenizer;
pub use token_table::{Token, TokenTable};
pub use vocabulary::{PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};
