//! Tensors of a model in a store: what the headers of its blobs say, put together to weights.

mod wire;

use content::Digest;
use formats::encoding::Role;
use formats::{Dtype, Encoding};

/// A weight, or any other tensor, of a stored model.
///
/// Invariant: there is at least one part, and the first one has the codes or elements.
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

impl StoredTensor {
    /// The array with that role.
    pub fn part(&self, role: Role) -> Option<&StoredPart> {
        self.parts.iter().find(|part| part.role == role)
    }

    /// Bytes of all its arrays.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).fold(0, u64::saturating_add)
    }

    /// The encoding's name in load plans and notes: `BF16`, or a `quant_type` such as `q4_1` and `int4`.
    pub fn dtype(&self) -> String {
        match self.encoding {
            Encoding::Plain(dtype) => dtype.name().to_owned(),
            other => other.quant_type().unwrap_or_default(),
        }
    }

    /// Elements that share a scale; 0 where [`StoredTensor::dtype`] says everything.
    pub fn group(&self) -> u64 {
        match self.encoding {
            Encoding::Affine { group, .. } => u64::from(group),
            _ => 0,
        }
    }
}
