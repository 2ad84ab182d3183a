//! Canonical names of a model's tensors. Blobs of a model that was imported from GGUF have the
//! names of the file, or the names that version 0.1 gave them; the family's table maps them to
//! canonical names. Folders already use canonical names, except for the text part of models with
//! vision.

use std::collections::{HashMap, HashSet};

use architectures::names;

use crate::{Error, StoredTensor};

/// Names the tensors of a model from a GGUF file of this architecture.
///
/// # Errors
/// [`Error::Source`] if two tensors would have the same name.
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

/// Names the tensors of a model from a folder. If two would have the same name, all keep their
/// stored names.
pub(super) fn of_folder(tensors: &mut [StoredTensor]) {
    let new: Vec<String> = tensors.iter().map(|tensor| names::of_folder(&tensor.name)).collect();
    let unique = new.iter().collect::<HashSet<_>>().len() == new.len();
    for (tensor, name) in tensors.iter_mut().zip(new).filter(|_| unique) {
        tensor.name = name;
    }
}
