//! Problems of a store.

use content::Digest;

/// A damaged or missing item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Digest of the blob, if the problem concerns a blob.
    pub digest: Option<Digest>,
    /// Name of the blob's layer, if a model needs the blob.
    pub layer: Option<String>,
    /// The models that need it.
    pub models: Vec<String>,
    /// Description of the problem, for the user.
    pub error: String,
}
