//! Facts of a model that was imported from GGUF, from the stored headers of its files.

use std::collections::HashMap;

use formats::{GgmlType, Gguf};
use import::{Error, OpenBlob};
use manifests::Layer;

pub(super) use import::gguf_header as header;

/// Returns the types that tensors had in the files, by their names there.
pub(super) fn kinds(layers: &[Layer], open: &OpenBlob) -> Result<HashMap<String, GgmlType>, Error> {
    let mut kinds = HashMap::new();
    for header in import::gguf_headers(layers, open) {
        let header = header?;
        kinds.extend(parsed(&header)?.tensors.iter().map(|tensor| (tensor.name.to_owned(), tensor.kind)));
    }
    Ok(kinds)
}

pub(super) fn parsed(header: &[u8]) -> Result<Gguf<'_>, Error> {
    Gguf::parse_header(header).map_err(|e| Error::format("header of the GGUF file", e))
}
