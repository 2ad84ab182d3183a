//! Arrays of an exported file: parts of stored tensors, unchanged or converted, with their header
//! entries.

use formats::codec::{can_decode, can_encode};
use formats::encoding::Role;
use formats::safetensors::Member;
use formats::{Dtype, Encoding};

use super::FilePiece;
use import::{Conversion, Error, OpenBlob, RowOrder, StoredPart, StoredTensor, TensorSource};

/// Array of a tensor in another encoding. Its source is opened only when the array is written,
/// because a model can have more tensors than a process may have open files.
#[derive(Clone, Debug)]
pub struct ConvertedArray {
    /// Stored tensor that holds the numbers.
    pub tensor: StoredTensor,
    /// Encoding of the output.
    pub encoding: Encoding,
    /// Order of the rows in the output.
    pub order: RowOrder,
    /// Constant that is added to every number.
    pub add: f32,
    /// Role of the array that is written.
    pub role: Role,
    /// Length in bytes.
    pub size: u64,
}

impl ConvertedArray {
    pub(super) fn conversion(&self, open: &OpenBlob) -> Result<Conversion, Error> {
        let source = TensorSource::of(&self.tensor, open)?;
        Ok(Conversion { order: self.order, add: self.add, ..Conversion::to(source, self.encoding) })
    }
}

/// Array of a file together with its entry in the file's header.
#[derive(Clone, Debug)]
pub(super) struct ArrayEntry {
    pub(super) member: Member,
    pub(super) piece: FilePiece,
}

/// Changes to a tensor besides its encoding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// Name in the file.
    pub(super) name: String,
    pub(super) order: RowOrder,
    pub(super) add: f32,
}

impl Change {
    pub(super) fn none(name: &str) -> Self {
        Self { name: name.to_owned(), order: RowOrder::Stored, add: 0.0 }
    }
}

/// Returns a stored array, unchanged, under the name `name`.
pub(super) fn stored(part: &StoredPart, name: &str) -> ArrayEntry {
    let member = Member { name: name.to_owned(), dtype: part.dtype, shape: part.shape.clone(), size: part.size };
    ArrayEntry { member, piece: FilePiece::Blob { blob: part.blob, begin: part.offset, size: part.size } }
}

/// Returns the tensor as plain numbers of type `dtype`.
///
/// # Errors
/// [`Error::Source`] if the numbers cannot be decoded, there is no encoder for the type, or the
/// size overflows.
pub(super) fn plain(tensor: &StoredTensor, dtype: Dtype, change: &Change) -> Result<ArrayEntry, Error> {
    let refused = |reason: &str| Error::Source(format!("tensor `{}`: {reason}", tensor.name));
    let encoding = Encoding::Plain(dtype);
    if tensor.encoding == encoding
        && change.order == RowOrder::Stored
        && change.add == 0.0
        && let Some(part) = tensor.parts.first()
    {
        return Ok(stored(part, &change.name));
    }
    if !can_decode(tensor.encoding) {
        return Err(refused(&format!("{} cannot be read as numbers by this version", tensor.encoding)));
    }
    if !can_encode(encoding) {
        return Err(refused(&format!("{encoding} cannot be written by this version")));
    }
    let size = dtype.byte_count(&tensor.shape).map_err(refused)?;
    let array = ConvertedArray {
        tensor: tensor.clone(),
        encoding,
        order: change.order,
        add: change.add,
        role: Role::Weight,
        size,
    };
    let member = Member { name: change.name.clone(), dtype, shape: tensor.shape.clone(), size };
    Ok(ArrayEntry { member, piece: FilePiece::Array(Box::new(array)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_read_are_refused() {
        let tensor = |dtype| StoredTensor {
            name: "t".to_owned(),
            stored_name: "t".to_owned(),
            encoding: Encoding::Plain(dtype),
            shape: vec![4],
            parts: Vec::new(),
        };
        let error = plain(&tensor(Dtype::F8_E4M3Fnuz), Dtype::F32, &Change::none("t")).expect_err("no decoder");
        assert!(error.to_string().contains("tensor `t`"), "{error}");
        assert!(plain(&tensor(Dtype::F8_E4M3), Dtype::F32, &Change::none("t")).is_ok());
    }
}
