//! Errors of this crate. Their class says how a caller can react.

use std::path::PathBuf;

use content::operation::{Classified, ErrorClass};
use content::text::size;

/// Reasons why an operation on a model is not possible although nothing is damaged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model does not exist.
    #[error("model '{0}' not found")]
    NotFound(String),
    /// The model does not exist and could not be pulled.
    #[error("model `{name}` is not in the store and could not be pulled: {reason}")]
    Absent {
        /// Name of the model.
        name: String,
        /// Why the pull failed.
        reason: String,
    },
    /// The version of the model does not exist, or it cannot be restored.
    #[error("{0}")]
    NoVersion(String),
    /// The model is pinned and cannot be removed.
    #[error("model '{0}' is pinned; `lode unpin {0}` first")]
    Pinned(String),
    /// The model is stored, but this build cannot run it.
    #[error("model '{name}' cannot be run: {reason}")]
    CannotRun {
        /// Name of the model.
        name: String,
        /// Why it cannot be run.
        reason: String,
    },
    /// The store's disk has not enough free space; detected before the work begins.
    #[error(
        "{what} needs at least {} on the disk of `{}`, which has {} free; free {} there, for instance by removing models \
         (`lode du` shows what each takes, `lode rm` removes one)",
        size(*.needed), .home.display(), size(*.free), size(.needed - .free)
    )]
    NoRoom {
        /// Purpose of the space.
        what: String,
        /// Bytes that are needed at least.
        needed: u64,
        /// Folder of the store.
        home: PathBuf,
        /// Free bytes.
        free: u64,
    },
    /// No memory plan can be made for the model, and why.
    #[error("no memory plan can be made for this model: {0}")]
    CannotPlan(String),
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound(_) | Self::Absent { .. } | Self::NoVersion(_) => ErrorClass::NotFound,
            Self::Pinned(_) => ErrorClass::Conflict,
            Self::CannotRun { .. } => ErrorClass::CannotRun,
            Self::CannotPlan(_) => ErrorClass::Invalid,
            Self::NoRoom { .. } => ErrorClass::NoRoom,
        }
    }
}
