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
    /// A metadata key or a field of `config.json` that is missing or out of range.
    #[error("{source_name}: {reason}")]
    Config {
        /// `config.json` or `GGUF metadata`.
        source_name: &'static str,
        /// Which key, what was found and what was expected.
        reason: String,
    },
    /// An architecture that nothing is known about.
    #[error("architecture `{name}` cannot be run yet; supported: {supported}")]
    Architecture {
        /// As the file names it.
        name: String,
        /// The ones that can be run.
        supported: String,
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
