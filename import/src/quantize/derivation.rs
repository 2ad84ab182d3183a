//! Blob that is derived from other blobs: its tensors, its header, and the key under which the
//! result is remembered.

use std::collections::BTreeMap;

use content::{Algorithm, Digest, Hasher};
use formats::encoding::{PartShape, Role};
use formats::safetensors::{Member, canonical_header};
use formats::{Dtype, Encoding, codec};
use manifests::Layer;

use super::TensorRow;
use crate::{Decision, Error, StoredTensor};

/// First line of every key. Change it when the meaning of the rest of a key changes.
const KEY: &str = "lode derivation 2";

/// Blob to be derived.
///
/// Invariant: the header is canonical for the tensors, which are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derivation {
    /// Name of the layer: the name of a tensor or a group.
    pub name: String,
    /// Digest of the layer that it replaces.
    pub replaces: Digest,
    /// Tensors of the blob.
    pub tensors: Vec<DerivedTensor>,
    header: Vec<u8>,
    size: u64,
}

/// Tensor of a derived blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedTensor {
    /// Tensor of the source.
    pub source: StoredTensor,
    /// Encoding in the derived blob; the source's encoding if the bytes are copied.
    pub encoding: Encoding,
}

impl DerivedTensor {
    /// Returns the derived tensor; `None` if the tensor is dropped.
    pub(super) fn new(tensor: &StoredTensor, row: &TensorRow) -> Option<Self> {
        let encoding = match row.decision {
            Decision::Keep(_) => tensor.encoding,
            Decision::Encode(to) => to,
            Decision::Drop => return None,
        };
        Some(Self { source: tensor.clone(), encoding })
    }

    /// Returns the arrays of the tensor in the blob.
    fn parts(&self) -> Result<Vec<PartShape>, Error> {
        let tensor = &self.source;
        let float = if let Encoding::Plain(dtype) = self.encoding { dtype } else { super::float(tensor) };
        let parts = self.encoding.parts(&tensor.shape, float);
        let mut parts = parts.map_err(|reason| Error::Source(format!("tensor `{}`: {reason}", tensor.name)))?;
        if self.encoding == tensor.encoding && tensor.parts.iter().any(|part| part.role == Role::GlobalScale) {
            parts.push(PartShape { role: Role::GlobalScale, dtype: Dtype::F32, shape: Vec::new() });
        }
        Ok(parts)
    }
}

impl Derivation {
    pub(super) fn new(layer: &Layer, mut tensors: Vec<DerivedTensor>) -> Result<Self, Error> {
        tensors.sort_by(|a, b| a.source.stored_name.cmp(&b.source.stored_name));
        let mut members = Vec::new();
        for tensor in &tensors {
            members.extend(tensor.parts()?.into_iter().map(|part| member(&tensor.source.stored_name, part)));
        }
        let header = canonical_header(&members, &metadata(&tensors));
        let data = members.iter().map(|member| member.size).fold(0, u64::saturating_add);
        let name = layer.name().unwrap_or(&tensors[0].source.stored_name).to_owned();
        Ok(Self { name, replaces: *layer.digest(), size: data.saturating_add(header.len() as u64), tensors, header })
    }

    /// Returns the canonical header, including the length before it.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Returns the length of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the digests of the source blobs, each once.
    pub fn sources(&self) -> Vec<Digest> {
        let parts = self.tensors.iter().flat_map(|tensor| &tensor.source.parts);
        let mut sources: Vec<Digest> = parts.map(|part| part.blob).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Returns the key under which the result is remembered. It covers the inputs and everything
    /// else that determines the result. `sources` are the digests of the source blobs.
    pub fn key(&self, sources: &[Digest]) -> Digest {
        let mut sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
        sources.sort_unstable();
        let head = format!("{KEY}\nquantize {}\n{}\n", codec::VERSION, sources.join("\n"));
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(head.as_bytes());
        // The header contains the names, the encodings, the shapes and the dtypes of scales.
        hasher.update(&self.header);
        // The headers of the source blobs describe how to decode them, except for weights that only
        // the config describes.
        for tensor in &self.tensors {
            let (encoding, group) = (tensor.source.encoding, tensor.source.encoding.group_size());
            hasher.update(format!("{encoding}\0{group}\0{:?}\0", tensor.source.shape).as_bytes());
        }
        hasher.finish()
    }
}

fn member(name: &str, part: PartShape) -> Member {
    let size = part.size();
    Member { name: format!("{name}{}", part.role.suffix()), dtype: part.dtype, shape: part.shape, size }
}

/// Returns `quant_type` and `group_size`: for the blob if it has one tensor, else for each tensor.
fn metadata(tensors: &[DerivedTensor]) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    for tensor in tensors {
        let Some(quant_type) = tensor.encoding.quant_type() else { continue };
        let prefix = if tensors.len() == 1 { String::new() } else { format!("{}.", tensor.source.stored_name) };
        metadata.insert(format!("{prefix}quant_type"), quant_type);
        metadata.insert(format!("{prefix}group_size"), tensor.encoding.group_size().to_string());
    }
    metadata
}
