//! Tensors of a model in a store: what the headers of its blobs say, put together to weights.

mod wire;

use content::Digest;
use formats::encoding::Role;
use formats::{Dtype, Encoding};

use crate::{Error, ReadAt, SourceTensor};

/// A weight, or any other tensor, of a stored model.
///
/// Invariant: there is at least one part, and the first one has the codes or elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Canonical name.
    pub name: String,
    /// The name in its blob; a blob that is derived from it has it too. In a file that is a blob as it is, the file's.
    pub stored_name: String,
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
    /// The name in a folder: the text part of a model that reads pictures too has one of its own there.
    pub fn folder_name(&self) -> &str {
        if architectures::names::of_folder(&self.stored_name) == self.name { &self.stored_name } else { &self.name }
    }

    /// A tensor of a file that is a blob as it is.
    ///
    /// # Errors
    /// [`Error::Source`] where the file's source has no digest: it is no blob.
    pub(crate) fn in_file(name: String, file: &dyn ReadAt, tensor: &SourceTensor) -> Result<Self, Error> {
        let blob = file.digest();
        let blob = blob.ok_or_else(|| Error::Source(format!("`{}` is not a blob of a store", file.name())))?;
        let part = StoredPart {
            role: tensor.role,
            name: tensor.name.clone(),
            blob,
            offset: tensor.offset,
            size: tensor.size,
            dtype: tensor.dtype,
            shape: tensor.dims.clone(),
        };
        Ok(Self {
            name,
            stored_name: tensor.name.clone(),
            encoding: tensor.encoding,
            shape: tensor.shape.clone(),
            parts: vec![part],
        })
    }

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
