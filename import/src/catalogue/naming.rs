//! Canonical names for the tensors of a model that came as GGUF. Its blobs have the names of the file, or those that
//! version 0.1 gave; the family's table has the canonical ones.

use std::collections::HashMap;

use crate::{Error, StoredTensor};

/// Names the tensors of a model of that architecture.
///
/// # Errors
/// [`Error::Source`] where two would have one name.
pub(super) fn of_gguf(tensors: &mut [StoredTensor], architecture: &str) -> Result<(), Error> {
    let mut taken: HashMap<String, String> = HashMap::new();
    for tensor in tensors {
        let source = architectures::source_name(architecture, &tensor.stored_name);
        tensor.name = architectures::names::canonical(architecture, &source);
        if let Some(other) = taken.insert(tensor.name.clone(), tensor.stored_name.clone()) {
            let (own, name) = (&tensor.stored_name, &tensor.name);
            return Err(Error::Source(format!("tensors `{other}` and `{own}` would both be called `{name}`")));
        }
    }
    Ok(())
}
