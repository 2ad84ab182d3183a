//! Errors of tokenizers, templates and constraints.

/// A tokenizer or template that cannot be used, or text that it does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer's files are invalid.
    #[error("the model's tokenizer cannot be used: {0}")]
    Tokenizer(String),
    /// The chat template is invalid, or raised an error about the messages.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// A format cannot be enforced on answers.
    #[error("the format cannot be used: {0}")]
    Format(String),
    /// A text is longer than any context.
    #[error("the text has {0} bytes, at most {max} are cut into tokens; send it in parts", max = crate::MAX_TEXT)]
    TooLong(usize),
    /// Fill-in-the-middle was requested, but the model does not support it.
    #[error("the model does not support insert: its vocabulary has no tokens for it")]
    Insert,
    /// A token id is not in the vocabulary.
    #[error("token {id} is not in the vocabulary of {size}")]
    Token {
        /// The token id.
        id: u32,
        /// Size of the vocabulary.
        size: usize,
    },
}

impl Error {
    pub(crate) fn tokenizer(reason: impl std::fmt::Display) -> Self {
        Self::Tokenizer(reason.to_string())
    }
}
