//! Facts of a model that was imported from GGUF, from the stored headers of its files.

use std::collections::{HashMap, HashSet};

use formats::{GgmlType, Gguf};
use import::{Error, OpenBlob, is_projector_header};
use manifests::Layer;

/// Headers of a model that was imported from GGUF.
pub(super) struct Headers {
    /// Header of the model; of a split one, of the first file.
    pub(super) model: Vec<u8>,
    /// Header of the projector, if the model has one.
    pub(super) projector: Option<Vec<u8>>,
}

/// Reads the headers; `None` for a model from another format.
pub(super) fn headers(layers: &[Layer], open: &OpenBlob) -> Result<Option<Headers>, Error> {
    let mut all = import::gguf_headers(layers, open);
    let Some(model) = all.next().transpose()? else { return Ok(None) };
    let projector = all.last().transpose()?.filter(|raw| parsed(raw).is_ok_and(|gguf| is_projector_header(&gguf)));
    Ok(Some(Headers { model, projector }))
}

/// Returns the names of the tensors of a projector.
pub(super) fn tensor_names(header: Option<&[u8]>) -> Result<HashSet<String>, Error> {
    let Some(header) = header else { return Ok(HashSet::new()) };
    Ok(parsed(header)?.tensors.iter().map(|tensor| tensor.name.to_owned()).collect())
}

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
