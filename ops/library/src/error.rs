//! What callers act on: it is found in the chain of an error by its type, whatever was said around it.

use std::path::PathBuf;

use content::text::size;

/// Why something cannot be done with a model, where that is nobody's damage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such model.
    #[error("model '{0}' not found")]
    NotFound(String),
    /// There is no such model, and none could be brought here.
    #[error("there is no model `{name}` here, and none could be pulled: {reason}")]
    Absent {
        /// Its name.
        name: String,
        /// Why it could not.
        reason: String,
    },
    /// There is no such version of a model, or it cannot be gone back to.
    #[error("{0}")]
    NoVersion(String),
    /// The model is pinned and was to be removed.
    #[error("model '{0}' is pinned; `lode unpin {0}` first")]
    Pinned(String),
    /// The model is here, and nothing can compute with it.
    #[error("model '{name}' cannot be run: {reason}")]
    CannotRun {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The disk of the store has no room for something; known before the work begins.
    #[error(
        "{what} needs at least {} on the disk of `{}`, which has {} free; free {} there, for instance by removing models \
         (`lode du` shows what each takes, `lode rm` removes one)",
        size(*.needed), .home.display(), size(*.free), size(.needed - .free)
    )]
    NoRoom {
        /// What it is for.
        what: String,
        /// Bytes that it needs at least.
        needed: u64,
        /// The folder of the store.
        home: PathBuf,
        /// Bytes that are free.
        free: u64,
    },
    /// Nothing can be planned for the model, and why.
    #[error("nothing can be planned for this model: {0}")]
    CannotPlan(String),
}
