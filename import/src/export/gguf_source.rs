//! What is known of a model that came as a GGUF file: the header that was kept of it.

use std::collections::HashMap;
use std::io;

use formats::{GgmlType, Gguf};
use manifests::{Layer, media_types};

use crate::{Error, OpenBlob};

/// The longest header that is read, in bytes.
const MAX_HEADER: u64 = 1 << 30;

/// The bytes of the first GGUF header among the layers: the one with the keys, where there are several.
pub(super) fn header(layers: &[Layer], open: &OpenBlob) -> Result<Option<Vec<u8>>, Error> {
    headers(layers, open).next().transpose()
}

/// The types that tensors had in the files, by their names there.
pub(super) fn kinds(layers: &[Layer], open: &OpenBlob) -> Result<HashMap<String, GgmlType>, Error> {
    let mut kinds = HashMap::new();
    for header in headers(layers, open) {
        let header = header?;
        kinds.extend(parsed(&header)?.tensors.iter().map(|tensor| (tensor.name.to_owned(), tensor.kind)));
    }
    Ok(kinds)
}

/// The bytes of all GGUF headers.
fn headers<'a>(layers: &'a [Layer], open: &'a OpenBlob) -> impl Iterator<Item = Result<Vec<u8>, Error>> + 'a {
    let headers = layers.iter().filter(|layer| *layer.media_type() == media_types::HEADER);
    headers.filter_map(|layer| read(layer, open).map_err(|e| Error::io("read blob", layer.digest(), e)).transpose())
}

/// A header's bytes, where it is a GGUF file's.
fn read(layer: &Layer, open: &OpenBlob) -> io::Result<Option<Vec<u8>>> {
    let blob = open(layer.digest())?;
    let mut magic = [0; 4];
    if layer.size() < 4 || layer.size() > MAX_HEADER {
        return Ok(None);
    }
    blob.read_exact_at(&mut magic, 0)?;
    if magic != *b"GGUF" {
        return Ok(None);
    }
    let mut bytes = vec![0; layer.size() as usize];
    blob.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

pub(super) fn parsed(header: &[u8]) -> Result<Gguf<'_>, Error> {
    Gguf::parse_header(header).map_err(|e| Error::format("header of the GGUF file", e))
}
