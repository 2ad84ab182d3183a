//! Tensors of a model in a store: weights that are assembled from the headers of its blobs.

mod wire;

use content::Digest;
use formats::encoding::Role;
use formats::{Dtype, Encoding};

use crate::{Error, ReadAt, SourceTensor};

/// Weight or other tensor of a stored model.
///
/// Invariant: there is at least one part, and the first one has the codes or elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Canonical name.
    pub name: String,
    /// Name in its blob, which derived blobs keep. In a file that is stored as one blob, the name
    /// in the file.
    pub stored_name: String,
    /// Encoding of the numbers.
    pub encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Arrays; the first one has the codes or elements.
    pub parts: Vec<StoredPart>,
}

/// Array of a stored weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// Role of the array in the weight.
    pub role: Role,
    /// Name in the blob.
    pub name: String,
    /// Digest of the blob.
    pub blob: Digest,
    /// Offset of the first byte in the blob.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions as in the header of the blob, outermost first.
    pub shape: Vec<u64>,
}

impl StoredTensor {
    /// Returns the name in a folder. The text part of a model with vision has other names there.
    pub fn folder_name(&self) -> &str {
        if architectures::names::of_folder(&self.stored_name) == self.name { &self.stored_name } else { &self.name }
    }

    /// Creates a tensor of a file that is stored as one blob.
    ///
    /// # Errors
    /// [`Error::Source`] if the file's source has no digest and is therefore not a blob.
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

    /// Returns the array with this role.
    pub fn part(&self, role: Role) -> Option<&StoredPart> {
        self.parts.iter().find(|part| part.role == role)
    }

    /// Returns the size of all arrays in bytes.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).fold(0, u64::saturating_add)
    }

    /// Returns the name of the encoding in load plans and notes: `BF16`, or a `quant_type` such as
    /// `q4_1` or `int4`.
    pub fn dtype(&self) -> String {
        match self.encoding {
            Encoding::Plain(dtype) => dtype.name().to_owned(),
            other => other.quant_type().unwrap_or_default(),
        }
    }

    /// Returns the group size; 0 if [`StoredTensor::dtype`] implies it.
    pub fn group(&self) -> u64 {
        match self.encoding {
            Encoding::Affine { group, .. } => u64::from(group),
            _ => 0,
        }
    }
}
