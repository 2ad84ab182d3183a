//! What callers act on: it is found in the chain of an error by its type, whatever was said around it.

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
    /// Nothing can be planned for the model, and why.
    #[error("nothing can be planned for this model: {0}")]
    CannotPlan(String),
}
