//! The errors of parsers and writers.

/// A tensor file or a model's config that cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes violate the format.
    #[error("not a readable {format} file: at byte {offset}: {reason}")]
    Malformed {
        /// `safetensors` or `GGUF`.
        format: &'static str,
        /// Offset of the invalid item.
        offset: u64,
        /// The item, the value found and the value expected.
        reason: String,
    },
    /// The bytes end too early: the file was truncated, or the caller has to read more of it.
    #[error("not a readable {format} file: at byte {offset}: {reason}")]
    Truncated {
        /// `GGUF`.
        format: &'static str,
        /// Offset of the truncated item.
        offset: u64,
        /// The item, and how much of it is available.
        reason: String,
    },
    /// A header that GGUF cannot represent.
    #[error("cannot write the GGUF header: {reason}")]
    Unwritable {
        /// The key or tensor, and the reason.
        reason: String,
    },
}

impl Error {
    pub(crate) fn safetensors(offset: u64, reason: impl Into<String>) -> Self {
        Self::Malformed { format: "safetensors", offset, reason: reason.into() }
    }

    pub(crate) fn gguf_cut(offset: usize, reason: impl Into<String>) -> Self {
        Self::Truncated { format: "GGUF", offset: offset as u64, reason: reason.into() }
    }

    pub(crate) fn gguf(offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed { format: "GGUF", offset: offset as u64, reason: reason.into() }
    }
}
