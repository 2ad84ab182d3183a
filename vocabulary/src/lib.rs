//! What the documents of a model say of text: its vocabulary, how text is split before merging, which tokens are special,
//! where its chat templates are, what it can be asked for.
//!
//! Everything here is pure: documents come in as parsed headers and JSON. Tokenizing and rendering are the runner's.
//!
//! What a GGUF file leaves out is what llama.cpp takes for it (`llama-vocab.cpp`); each such constant is here once.

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
pub use vocabulary::{Piece, PieceKind, Vocabulary, VocabularyKind};
