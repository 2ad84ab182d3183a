//! A GGUF file under construction: its keys, and its tensors with the pieces of their bytes.

use architectures::exchange::TensorChange;
use formats::gguf::{NewTensor, OwnedValue, write_header};
use formats::{Dtype, Encoding, GgmlType};

use super::array::{Change, ConvertedArray, plain, stored};
use super::rounding::Rounding;
use super::{ExportFile, ExtraTensor, FilePiece};
use import::{Error, RowOrder, StoredTensor};

/// File under construction.
#[derive(Default)]
pub(super) struct NewFile {
    pub(super) keys: Vec<(String, OwnedValue)>,
    pub(super) tensors: Vec<NewTensor>,
    pub(super) pieces: Vec<FilePiece>,
    pub(super) rounding: Rounding,
    pub(super) losses: Vec<String>,
}

impl NewFile {
    /// Sets `general.file_type` after tensors changed their type. Removes it if llama.cpp has no
    /// number for `kind`.
    pub(super) fn say_file_type(&mut self, kind: Option<GgmlType>) {
        let number = kind.and_then(GgmlType::file_type);
        self.keys.retain_mut(|(key, value)| {
            if key != "general.file_type" {
                return true;
            }
            number.is_some_and(|number| {
                *value = number.into();
                true
            })
        });
    }

    /// Adds a tensor: floats as `dtype` if one is given, other encodings unchanged.
    pub(super) fn add(&mut self, tensor: &StoredTensor, change: &Change, dtype: Option<Dtype>) -> Result<(), Error> {
        let (kind, piece) = match (tensor.encoding, dtype) {
            (Encoding::Plain(own), dtype) => {
                let dtype = dtype.unwrap_or(own);
                self.rounding.note(tensor, dtype);
                (ggml_type(tensor, dtype)?, plain(tensor, dtype, change)?.piece)
            }
            (Encoding::Blocks(kind), _) => (kind, blocks(tensor, change)?),
            (other, _) => {
                return Err(Error::Source(format!(
                    "tensor `{}`: GGUF files do not know {other}; export the model as safetensors and quantize that, e.g. \
                     by `lode create --quantize q4_k_m`",
                    tensor.name
                )));
            }
        };
        // GGUF has no tensors without dimensions.
        let dims = if tensor.shape.is_empty() { vec![1] } else { tensor.shape.iter().rev().copied().collect() };
        self.tensors.push(NewTensor { name: change.name.clone(), kind, dims });
        self.pieces.push(piece);
        Ok(())
    }

    pub(super) fn add_extra(&mut self, tensor: ExtraTensor) {
        self.pieces.push(FilePiece::Bytes(tensor.numbers.iter().flat_map(|number| number.to_le_bytes()).collect()));
        self.tensors.push(NewTensor { name: tensor.name, kind: GgmlType::F32, dims: tensor.dims });
    }

    pub(super) fn finish(self, name: &str) -> Result<ExportFile, Error> {
        let header = write_header(&self.keys, &self.tensors).map_err(|e| Error::format(name, e))?;
        let mut pieces = vec![FilePiece::Bytes(header.bytes)];
        let mut at = 0;
        for (piece, place) in self.pieces.into_iter().zip(&header.places) {
            pieces.push(FilePiece::Zeros(place.offset - at));
            at = place.offset + piece.size();
            pieces.push(piece);
        }
        pieces.push(FilePiece::Zeros(header.data_size - at));
        pieces.retain(|piece| piece.size() > 0);
        ExportFile::new(name, pieces)
    }
}

/// Returns the type to which the numbers of a float tensor are converted.
pub(super) fn float_target(tensor: &StoredTensor, table: &TensorChange, wanted: Option<Dtype>) -> Option<Dtype> {
    match tensor.encoding {
        Encoding::Plain(_) if table.float32 => Some(Dtype::F32),
        Encoding::Plain(Dtype::F16 | Dtype::Bf16 | Dtype::F32) => wanted,
        _ => None,
    }
}

pub(super) fn ggml_type(tensor: &StoredTensor, dtype: Dtype) -> Result<GgmlType, Error> {
    let found = GgmlType::ALL.iter().copied().find(|kind| kind.dtype() == Some(dtype));
    found.ok_or_else(|| Error::Source(format!("tensor `{}`: GGUF files do not know {dtype}", tensor.name)))
}

/// Returns the blocks of a tensor, with its rows in the requested order.
fn blocks(tensor: &StoredTensor, change: &Change) -> Result<FilePiece, Error> {
    let part = tensor.parts.first().filter(|_| change.add == 0.0);
    let part =
        part.ok_or_else(|| Error::Source(format!("tensor `{}`: numbers in blocks cannot be added to", tensor.name)))?;
    if change.order == RowOrder::Stored {
        return Ok(stored(part, &change.name).piece);
    }
    Ok(FilePiece::Array(Box::new(ConvertedArray {
        tensor: tensor.clone(),
        encoding: tensor.encoding,
        order: change.order,
        add: 0.0,
        role: part.role,
        size: part.size,
    })))
}
