//! What is known of a model that came as a GGUF file: the headers that were kept of it.

use std::io;

use manifests::{Layer, media_types};

use crate::{Error, OpenBlob};

/// The longest header of a GGUF file that is read, in bytes: those with the largest vocabularies have about 20 MB.
pub const MAX_GGUF_HEADER: u64 = 256 << 20;

/// The bytes of the first GGUF header among the layers: the one with the keys, where there are several. `None` for a model
/// that came otherwise.
///
/// # Errors
/// [`Error::Io`] where a header cannot be read.
pub fn gguf_header(layers: &[Layer], open: &OpenBlob) -> Result<Option<Vec<u8>>, Error> {
    gguf_headers(layers, open).next().transpose()
}

/// The bytes of all GGUF headers among the layers.
pub fn gguf_headers<'a>(layers: &'a [Layer], open: &'a OpenBlob) -> impl Iterator<Item = Result<Vec<u8>, Error>> + 'a {
    let headers = layers.iter().filter(|layer| *layer.media_type() == media_types::HEADER);
    headers.filter_map(|layer| read(layer, open).map_err(|e| Error::io("read blob", layer.digest(), e)).transpose())
}

/// A header's bytes, where it is a GGUF file's.
fn read(layer: &Layer, open: &OpenBlob) -> io::Result<Option<Vec<u8>>> {
    let blob = open(layer.digest())?;
    let mut magic = [0; 4];
    if layer.size() < 4 || layer.size() > MAX_GGUF_HEADER {
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
