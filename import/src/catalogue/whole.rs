//! Tensors of GGUF files that are blobs as they are: nothing was split, so the places are those in the file.

use crate::plan::canonical_names;
use crate::{Error, Inventory, StoredPart, StoredTensor};

/// The tensors of files that are blobs themselves, under canonical names, in the order of their bytes.
///
/// # Errors
/// Names that canonical names would make the same, and a file whose source has no digest: it is no blob.
pub fn whole(inventory: &Inventory) -> Result<Vec<StoredTensor>, Error> {
    let tensor = |named: crate::plan::Named<'_>| {
        let tensor = named.tensor;
        let file = &inventory.files[tensor.file];
        let blob = file.source.digest();
        let blob = blob.ok_or_else(|| Error::Source(format!("`{}` is not a blob of a store", file.source.name())))?;
        let part = StoredPart {
            role: tensor.role,
            name: tensor.name.clone(),
            blob,
            offset: tensor.offset,
            size: tensor.size,
            dtype: tensor.dtype,
            shape: tensor.dims.clone(),
        };
        let (encoding, shape) = (tensor.encoding, tensor.shape.clone());
        Ok(StoredTensor { name: named.name, encoding, shape, parts: vec![part] })
    };
    canonical_names(inventory)?.into_iter().map(tensor).collect()
}
