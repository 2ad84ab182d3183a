//! Tensors of GGUF files that are blobs as they are: nothing was split, so the places are those in the file.

use super::naming;
use crate::{Error, Inventory, StoredTensor};

/// The tensors of files that are blobs themselves, under canonical names, in the order of their bytes.
///
/// # Errors
/// Names that canonical names would make the same, and a file whose source has no digest: it is no blob.
pub fn whole(inventory: &Inventory) -> Result<Vec<StoredTensor>, Error> {
    if let Some(note) = &inventory.note {
        return Err(Error::Source(format!(
            "its GGUF file is kept whole, and its tensors have to be converted before they are used ({note}); download the file and run \
             `lode create NAME -f FILE`"
        )));
    }
    let tensors = inventory
        .tensors
        .iter()
        .map(|tensor| StoredTensor::in_file(tensor.name.clone(), &*inventory.files[tensor.file].source, tensor));
    let mut tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    naming::of_gguf(&mut tensors, &inventory.architecture)?;
    Ok(tensors)
}
