//! Why a file was refused.

/// A tensor file or a model's config that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not what the format says.
    #[error("not a readable {format} file: at byte {offset}: {reason}")]
    Malformed {
        /// `safetensors` or `GGUF`.
        format: &'static str,
        /// Where the thing begins that is wrong.
        offset: u64,
        /// What it is, what was found and what was expected.
        reason: String,
    },
    /// The bytes end before the thing does: the file was cut, or more of it has to be read.
    #[error("not a readable {format} file: at byte {offset}: {reason}")]
    Truncated {
        /// `GGUF`.
        format: &'static str,
        /// Where the thing begins that is cut.
        offset: u64,
        /// What it is, and how much of it is there.
        reason: String,
    },
    /// What a GGUF header cannot say.
    #[error("GGUF header to be written: {reason}")]
    Unwritable {
        /// Which key or tensor, and why.
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
