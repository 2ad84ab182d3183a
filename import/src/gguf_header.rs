//! Stored headers of the GGUF files from which a model was imported.

use std::io;

use manifests::{Layer, media_types};

use crate::{Error, OpenBlob};

/// Longest header of a GGUF file that is read, in bytes. Headers with the largest vocabularies have
/// about 20 MB.
pub const MAX_GGUF_HEADER: u64 = 256 << 20;

/// Returns the bytes of the first GGUF header among the layers, which has the keys if there are
/// several. `None` for a model from another format.
///
/// # Errors
/// [`Error::Io`] if a header cannot be read.
pub fn gguf_header(layers: &[Layer], open: &OpenBlob) -> Result<Option<Vec<u8>>, Error> {
    gguf_headers(layers, open).next().transpose()
}

/// Returns the bytes of all GGUF headers among the layers.
pub fn gguf_headers<'a>(layers: &'a [Layer], open: &'a OpenBlob) -> impl Iterator<Item = Result<Vec<u8>, Error>> + 'a {
    let headers = layers.iter().filter(|layer| *layer.media_type() == media_types::HEADER);
    headers.filter_map(|layer| read(layer, open).map_err(|e| Error::io("read blob", layer.digest(), e)).transpose())
}

/// Returns the bytes of a header layer if it is the header of a GGUF file.
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
