//! Tensor catalogue: every tensor of a stored model under its canonical name, with the locations of
//! its arrays, read from the headers of its blobs.

mod join;
mod labelled;
mod naming;
mod whole;

use content::Digest;
use formats::Gguf;
use formats::safetensors::Header;
use manifests::{Layer, media_types};

pub use join::join;
pub use whole::whole;

use crate::compose::{OpenBlob, read_header};
use crate::{Error, QuantizationConfig, StoredTensor, gguf_header};

/// Version of the rules that make a catalogue, besides the rules of `architectures`. Increase it
/// when the rules change.
pub const CATALOGUE_VERSION: u32 = 4;

/// Largest `config.json` that is read, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// Returns every tensor of the model with these layers, in their order. Reads the headers of the
/// blobs, `config.json`, and the stored header of a GGUF file.
///
/// # Errors
/// A blob cannot be opened or read, or its metadata describes a weight that its arrays do not form.
pub fn catalogue(layers: &[Layer], open: &OpenBlob) -> Result<Vec<StoredTensor>, Error> {
    let tensors = layers.iter().filter(|layer| *layer.media_type() == media_types::TENSOR);
    let blobs = tensors.map(|layer| header(layer, open)).collect::<Result<Vec<_>, _>>()?;
    let mut tensors = join(&blobs, &quantization(layers, open)?)?;
    if let Some(header) = gguf_header(layers, open)? {
        let gguf = Gguf::parse_header(&header).map_err(|e| Error::format("the kept header of the GGUF file", e))?;
        naming::of_gguf(&mut tensors, gguf.text("general.architecture").unwrap_or_default())?;
    } else {
        naming::of_folder(&mut tensors);
    }
    Ok(tensors)
}

fn header(layer: &Layer, open: &OpenBlob) -> Result<(Digest, Header), Error> {
    let digest = *layer.digest();
    let header = open(&digest).and_then(|blob| read_header(&*blob));
    let name = layer.name().unwrap_or("layer");
    let header = header.map_err(|e| Error::io("read the header of", format!("{digest}` of `{name}"), e))?;
    Ok((digest, header))
}

/// Returns the quantization that the `config.json` among these layers describes; the default if
/// there is no config.
///
/// # Errors
/// The config cannot be read.
pub fn quantization(layers: &[Layer], open: &OpenBlob) -> Result<QuantizationConfig, Error> {
    let is_config = |layer: &&Layer| *layer.media_type() == media_types::JSON && layer.name() == Some("config.json");
    let Some(layer) = layers.iter().find(is_config).filter(|layer| layer.size() <= MAX_CONFIG) else {
        return Ok(QuantizationConfig::default());
    };
    let mut raw = vec![0; layer.size() as usize];
    let read = open(layer.digest()).and_then(|blob| blob.read_exact_at(&mut raw, 0));
    read.map_err(|e| Error::io("read", format!("{}` of `config.json", layer.digest()), e))?;
    Ok(QuantizationConfig::from_config(&raw))
}
