//! Tensors of GGUF files that are blobs as they are: nothing was split, so the places are those in the file.

use crate::plan::canonical_names;
use crate::{Error, Inventory, StoredTensor};

/// The tensors of files that are blobs themselves, under canonical names, in the order of their bytes.
///
/// # Errors
/// Names that canonical names would make the same, and a file whose source has no digest: it is no blob.
pub fn whole(inventory: &Inventory) -> Result<Vec<StoredTensor>, Error> {
    let tensor = |named: crate::plan::Named<'_>| {
        StoredTensor::in_file(named.name, &*inventory.files[named.tensor.file].source, named.tensor)
    };
    canonical_names(inventory)?.into_iter().map(tensor).collect()
}
