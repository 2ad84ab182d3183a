//! The tensor catalogue: every tensor of a model with the place of its bytes, read once from the blobs' headers.

use anyhow::{Context, Result, ensure};
use content::Digest;
use formats::safetensors::{Header, MAX_HEADER, TensorInfo};
use formats::{Dtype, GgmlType};
use manifests::{Layer, Manifest, media_types};
use serde::{Deserialize, Serialize};

use super::Library;

/// The kind of note under which catalogues are in the store's index.
const NOTE: &str = "tensors";

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CatalogueTensor {
    /// Canonical name.
    pub(crate) name: String,
    /// The blob.
    pub(crate) blob: String,
    /// First byte in the blob.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) size: u64,
    /// A dtype's name, or a GGML type's `quant_type`.
    pub(crate) dtype: String,
    /// Logical dimensions, outermost first.
    pub(crate) shape: Vec<u64>,
}

impl CatalogueTensor {
    /// The type as people know it.
    pub(crate) fn kind(&self) -> String {
        GgmlType::from_quant_name(&self.dtype).map_or_else(|| self.dtype.clone(), |kind| kind.name().to_owned())
    }
}

impl Library {
    /// Every tensor of a model, in the manifest's order.
    pub(crate) fn catalogue(&self, manifest: &Manifest) -> Result<Vec<CatalogueTensor>> {
        let known = self.store.note(NOTE, manifest.digest())?;
        if let Some(catalogue) = known.and_then(|note| serde_json::from_slice(&note).ok()) {
            return Ok(catalogue);
        }
        let mut catalogue = Vec::new();
        for layer in manifest.layers_of(media_types::TENSOR) {
            let name = layer.name().unwrap_or_default();
            catalogue.extend(self.tensors_of(layer).with_context(|| format!("layer `{name}`"))?);
        }
        self.store.set_note(NOTE, manifest.digest(), &serde_json::to_vec(&catalogue)?)?;
        Ok(catalogue)
    }

    fn tensors_of(&self, layer: &Layer) -> Result<Vec<CatalogueTensor>> {
        let header = self.header(layer.digest())?;
        header.tensors.iter().map(|tensor| entry(layer.digest(), &header, tensor)).collect()
    }

    fn header(&self, digest: &Digest) -> Result<Header> {
        let blob = self.store.open_blob(digest)?;
        let mut beginning = blob.read(0..8)?;
        if let Some(first) = beginning.first_chunk::<8>() {
            let length = Header::length(*first, blob.size())?.min(MAX_HEADER);
            beginning.extend(blob.read(8..8 + length)?);
        }
        Ok(Header::parse(&beginning, blob.size())?)
    }
}

fn entry(blob: &Digest, header: &Header, tensor: &TensorInfo) -> Result<CatalogueTensor> {
    let quant = header.metadata.get(&format!("{}.quant_type", tensor.name));
    let quant = quant.or_else(|| header.metadata.get("quant_type")).filter(|_| tensor.dtype == Dtype::U8);
    let mut shape = tensor.shape.clone();
    if let Some(kind) = quant.and_then(|name| GgmlType::from_quant_name(name)) {
        // Rows are stored as bytes; the logical length follows from the blocks.
        let row = shape.last_mut().context("a tensor of blocks has no dimensions")?;
        ensure!(row.is_multiple_of(kind.block_bytes()), "rows of {row} bytes are not whole {kind} blocks");
        *row = *row / kind.block_bytes() * kind.block_elements();
    }
    Ok(CatalogueTensor {
        name: tensor.name.clone(),
        blob: blob.to_string(),
        offset: header.data_start + tensor.begin,
        size: tensor.size(),
        dtype: quant.cloned().unwrap_or_else(|| tensor.dtype.name().to_owned()),
        shape,
    })
}
