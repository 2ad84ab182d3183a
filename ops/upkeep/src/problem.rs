//! What is wrong with a store.

use content::Digest;

/// Something that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The blob, where it is one.
    pub digest: Option<Digest>,
    /// What its models call it, where one needs it.
    pub layer: Option<String>,
    /// The models that need it.
    pub models: Vec<String>,
    /// What is wrong, for people.
    pub error: String,
}
