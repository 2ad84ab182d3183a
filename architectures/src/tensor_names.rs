//! Names of a model's tensors.

use std::collections::HashSet;

/// Names of a model's tensors. Families omit tensors that are not among them, such as biases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorNames(HashSet<String>);

impl TensorNames {
    /// True if there is a tensor with this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Returns all names, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns the names after applying `rename` to each of them.
    pub(crate) fn map(&self, rename: impl Fn(&str) -> String) -> Self {
        self.0.iter().map(|name| rename(name)).collect()
    }
}

impl FromIterator<String> for TensorNames {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}
