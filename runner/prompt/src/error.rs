//! Why text could not be handled.

/// A tokenizer or template that cannot be used, or text that it does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer's files.
    #[error("the model's tokenizer cannot be used: {0}")]
    Tokenizer(String),
    /// The chat template, or what it said of the messages.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// A format that answers cannot be held to.
    #[error("the format cannot be used: {0}")]
    Format(String),
    /// A text that is longer than any context.
    #[error("the text has {0} bytes, at most {max} are cut into tokens; send it in parts", max = crate::MAX_TEXT)]
    TooLong(usize),
    /// Text between two others was asked for.
    #[error("the model does not support insert: its vocabulary has no tokens for it")]
    Insert,
    /// A token id that is not in the vocabulary.
    #[error("token {id} is not in the vocabulary of {size}")]
    Token {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        size: usize,
    },
}

impl Error {
    pub(crate) fn tokenizer(reason: impl std::fmt::Display) -> Self {
        Self::Tokenizer(reason.to_string())
    }
}
