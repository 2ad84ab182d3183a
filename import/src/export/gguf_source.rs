//! What is known of a model that came as a GGUF file: the header that was kept of it.

use formats::Gguf;
use manifests::{Layer, media_types};

use crate::{Error, OpenBlob};

/// The longest header that is read, in bytes.
const MAX_HEADER: u64 = 1 << 30;

/// The bytes of the first GGUF header among the layers: the one with the keys, where there are several.
pub(super) fn header(layers: &[Layer], open: &OpenBlob) -> Result<Option<Vec<u8>>, Error> {
    for layer in layers.iter().filter(|layer| *layer.media_type() == media_types::HEADER) {
        let failed = |e| Error::io("read blob", layer.digest(), e);
        let blob = open(layer.digest()).map_err(failed)?;
        let mut magic = [0; 4];
        if layer.size() < 4 || layer.size() > MAX_HEADER {
            continue;
        }
        blob.read_exact_at(&mut magic, 0).map_err(failed)?;
        if magic == *b"GGUF" {
            let mut bytes = vec![0; layer.size() as usize];
            blob.read_exact_at(&mut bytes, 0).map_err(failed)?;
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

pub(super) fn parsed(header: &[u8]) -> Result<Gguf<'_>, Error> {
    Gguf::parse_header(header).map_err(|e| Error::format("header of the GGUF file", e))
}
