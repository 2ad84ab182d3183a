//! Which tensors a model has, by name.

use std::collections::HashSet;

/// The names of a model's tensors: families leave out what is not there, such as biases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorNames(HashSet<String>);

impl TensorNames {
    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The names with something done to each of them.
    pub(crate) fn map(&self, rename: impl Fn(&str) -> String) -> Self {
        self.0.iter().map(|name| rename(name)).collect()
    }
}

impl FromIterator<String> for TensorNames {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}
