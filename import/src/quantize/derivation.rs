//! A blob that is made from another: its tensors, its header, and the name under which the result is remembered.

use std::collections::BTreeMap;

use content::{Algorithm, Digest, Hasher};
use formats::encoding::{PartShape, Role};
use formats::safetensors::{Member, canonical_header};
use formats::{Dtype, Encoding, codec};
use manifests::Layer;

use super::TensorRow;
use crate::{Decision, Error, StoredTensor};

/// What stands first in every key. To be changed with what the rest of a key means.
const KEY: &str = "lode derivation 2";

/// A blob to be derived.
///
/// Invariant: the header is canonical for the tensors, which are in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derivation {
    /// The layer's name: a tensor's or a group's.
    pub name: String,
    /// The layer whose place it takes.
    pub replaces: Digest,
    /// What it has.
    pub tensors: Vec<DerivedTensor>,
    header: Vec<u8>,
    size: u64,
}

/// A tensor of a derived blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedTensor {
    /// Where it comes from.
    pub source: StoredTensor,
    /// What it is encoded to; the source's encoding where its bytes are copied.
    pub encoding: Encoding,
}

impl DerivedTensor {
    /// `None` where the tensor is left out.
    pub(super) fn new(tensor: &StoredTensor, row: &TensorRow) -> Option<Self> {
        let encoding = match row.decision {
            Decision::Keep(_) => tensor.encoding,
            Decision::Encode(to) => to,
            Decision::Drop => return None,
        };
        Some(Self { source: tensor.clone(), encoding })
    }

    /// Its arrays in the blob.
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

    /// The canonical header, the length before it included.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Length of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The blobs that it is made from, each once.
    pub fn sources(&self) -> Vec<Digest> {
        let parts = self.tensors.iter().flat_map(|tensor| &tensor.source.parts);
        let mut sources: Vec<Digest> = parts.map(|part| part.blob).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// The name under which the result is remembered: what goes in, and everything that has a say in what comes out.
    /// `sources` are the digests of the blobs it is made from.
    pub fn key(&self, sources: &[Digest]) -> Digest {
        let mut sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
        sources.sort_unstable();
        let head = format!("{KEY}\nquantize {}\n{}\n", codec::VERSION, sources.join("\n"));
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(head.as_bytes());
        // The header says the names, the encodings, the shapes and the element types of scales.
        hasher.update(&self.header);
        // How the source's bytes are read is in its blobs' headers, but for weights whose config says it.
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

/// `quant_type` and `group_size`, for the blob where it has one tensor, else for each tensor.
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
