//! Canonical names for the tensors of a model. Blobs of one that came as GGUF have the names of the file, or those that version 0.1
//! gave; the family's table has the canonical ones. Folders have canonical names, but for the text part of models that read
//! pictures too.

use std::collections::{HashMap, HashSet};

use architectures::names;

use crate::{Error, StoredTensor};

/// Names the tensors of a model from a GGUF file of that architecture.
///
/// # Errors
/// [`Error::Source`] where two would have one name.
pub(super) fn of_gguf(tensors: &mut [StoredTensor], architecture: &str) -> Result<(), Error> {
    let mut taken: HashMap<String, String> = HashMap::new();
    for tensor in tensors {
        let source = architectures::source_name(architecture, &tensor.stored_name);
        tensor.name = names::canonical(architecture, &source);
        if let Some(other) = taken.insert(tensor.name.clone(), tensor.stored_name.clone()) {
            let (own, name) = (&tensor.stored_name, &tensor.name);
            return Err(Error::Source(format!("tensors `{other}` and `{own}` would both be called `{name}`")));
        }
    }
    Ok(())
}

/// Names the tensors of a model from a folder. Where two would have one name all keep their own.
pub(super) fn of_folder(tensors: &mut [StoredTensor]) {
    let new: Vec<String> = tensors.iter().map(|tensor| names::of_folder(&tensor.name)).collect();
    let unique = new.iter().collect::<HashSet<_>>().len() == new.len();
    for (tensor, name) in tensors.iter_mut().zip(new).filter(|_| unique) {
        tensor.name = name;
    }
}
