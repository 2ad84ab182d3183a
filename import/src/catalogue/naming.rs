//! Canonical names for the tensors of a model. Blobs of one that came as GGUF have the names of the file, or those that version 0.1
//! gave; the family's table has the canonical ones. Folders have canonical names, but for the text part of models that read
//! pictures too.

use std::collections::HashMap;

use architectures::names;

use crate::{Error, StoredTensor};

/// Names the tensors of a model from a GGUF file of that architecture.
///
/// # Errors
/// [`Error::Source`] where two would have one name.
pub(super) fn of_gguf(tensors: &mut [StoredTensor], architecture: &str) -> Result<(), Error> {
    rename(tensors, |tensor| {
        names::canonical(architecture, &architectures::source_name(architecture, &tensor.stored_name))
    })
}

/// Names the tensors of a model from a folder.
///
/// # Errors
/// [`Error::Source`] where two would have one name.
pub(super) fn of_folder(tensors: &mut [StoredTensor]) -> Result<(), Error> {
    rename(tensors, |tensor| names::of_folder(&tensor.name))
}

fn rename(tensors: &mut [StoredTensor], name: impl Fn(&StoredTensor) -> String) -> Result<(), Error> {
    let mut taken: HashMap<String, String> = HashMap::new();
    for tensor in tensors {
        tensor.name = name(tensor);
        if let Some(other) = taken.insert(tensor.name.clone(), tensor.stored_name.clone()) {
            let (own, name) = (&tensor.stored_name, &tensor.name);
            return Err(Error::Source(format!("tensors `{other}` and `{own}` would both be called `{name}`")));
        }
    }
    Ok(())
}
