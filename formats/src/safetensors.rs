//! The safetensors format: an 8-byte little-endian header length, a JSON header, the tensors' bytes
//! without gaps.

mod read;
mod write;

use std::collections::BTreeMap;

use crate::Dtype;

pub use write::{Member, canonical_header};

/// Maximum header size in bytes: the reference implementation's limit.
pub const MAX_HEADER: u64 = 100_000_000;
/// Maximum number of tensors and of metadata entries in a header: ten times those of the largest
/// models. It keeps the parsed header in proportion to its size.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;

/// A checked header of a file: the tensors cover the data without gaps or overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors, in the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Offset of the data in the file, in bytes.
    pub data_start: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Key; any text, never to be used as a path.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Offset of the first byte, from the beginning of the data.
    pub begin: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl TensorInfo {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.end - self.begin
    }
}

impl Header {
    /// Returns the tensor with a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
