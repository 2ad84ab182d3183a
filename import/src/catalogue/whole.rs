//! Tensors of GGUF files that are stored unsplit, as one blob: their offsets are the offsets in the
//! file.

use super::naming;
use crate::{Error, Inventory, StoredTensor};

/// Returns the tensors of files that are blobs, under canonical names, in the order of their bytes.
///
/// # Errors
/// Two tensors would have the same canonical name, or a file's source has no digest and is
/// therefore not a blob.
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
