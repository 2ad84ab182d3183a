//! The safetensors format: an 8-byte little-endian header length, a JSON header, the tensors' bytes without gaps.

mod read;
mod write;

use std::collections::BTreeMap;

use crate::Dtype;

pub use write::{Member, canonical_header};

/// The largest header that is read, in bytes: the reference implementation's limit.
pub const MAX_HEADER: u64 = 100_000_000;
/// Tensors and notes of a header, each at most: ten times what the largest models have, so that what is made of a header stays in
/// proportion to it.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Dimensions of a tensor, at most.
const MAX_DIMENSIONS: usize = 64;

/// A file's header, checked: the tensors cover the data without gaps or overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Where the data begins in the file, in bytes.
    pub data_start: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The key; any text, never to be used as a path.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, counted from the beginning of the data.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

impl TensorInfo {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.end - self.begin
    }
}

impl Header {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
