//! Tensors of a model in a store: what the headers of its blobs say, put together to weights.

use content::Digest;
use formats::encoding::Role;
use formats::{Dtype, Encoding};

/// A weight, or any other tensor, of a stored model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Canonical name.
    pub name: String,
    /// How its numbers are encoded.
    pub encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its arrays; the first one has the codes or elements.
    pub parts: Vec<StoredPart>,
}

/// An array of a stored weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// What it is.
    pub role: Role,
    /// The name in its blob.
    pub name: String,
    /// The blob.
    pub blob: Digest,
    /// First byte in the blob.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first, as the blob's header has them.
    pub shape: Vec<u64>,
}
