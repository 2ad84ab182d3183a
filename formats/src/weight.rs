//! An encoded weight in memory: what every reader of numbers is given, whatever the source format was.
//!
//! The bytes are mapped or were read; a weight may also be some whole rows of a larger one. A stack of matrices (the
//! experts of a layer) is read matrix by matrix or row by row.

use crate::dtype::element_count;
use crate::encoding::{Micro, Role};
use crate::{Dtype, Encoding, codec};

/// Numbers of a plain float type, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// F32, F16 or BF16; U8 where the encoding gives the codes a meaning.
    pub dtype: Dtype,
    /// Little-endian.
    pub bytes: &'a [u8],
}

/// An encoded weight.
///
/// Invariant: every array has exactly the bytes that encoding and shape ask for.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    pub(crate) encoding: Encoding,
    /// Matrices of the stack; 1 for a single one.
    pub(crate) matrices: usize,
    /// Rows of one matrix.
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) columns: usize,
    pub(crate) data: &'a [u8],
    pub(crate) scale: Option<Numbers<'a>>,
    pub(crate) bias: Option<Numbers<'a>>,
    pub(crate) global_scale: Option<f32>,
}

/// The arrays of a weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrays<'a> {
    /// Codes or elements.
    pub data: &'a [u8],
    /// Of each group or block.
    pub scale: Option<Numbers<'a>>,
    /// Of each group.
    pub bias: Option<Numbers<'a>>,
    /// Of the tensor.
    pub global_scale: Option<f32>,
}

impl<'a> Weight<'a> {
    /// Puts the arrays of a weight together.
    ///
    /// # Errors
    /// Which array is missing, too many, or has another length than encoding and shape ask for.
    pub fn new(encoding: Encoding, shape: &[u64], arrays: Arrays<'a>) -> Result<Self, String> {
        let float = arrays.scale.map_or(Dtype::F32, |scale| scale.dtype);
        if encoding.has_float_scale() && !matches!(float, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            return Err(format!("scales of type {float} are not supported, expected F32, F16 or BF16"));
        }
        let parts = encoding.parts(shape, float)?;
        let given = [Some(arrays.data), arrays.scale.map(|scale| scale.bytes), arrays.bias.map(|bias| bias.bytes)];
        for (role, bytes) in Role::ALL.into_iter().zip(given) {
            let expected = parts.iter().find(|part| part.role == role);
            match (expected, bytes) {
                (Some(part), Some(bytes)) if part.size() == bytes.len() as u64 => {}
                (None, None) => {}
                (Some(part), bytes) => {
                    let (expected, found) = (part.size(), bytes.map_or(0, <[u8]>::len));
                    return Err(format!("the {role:?} of {encoding} {shape:?} has {found} bytes, expected {expected}"));
                }
                (None, Some(_)) => return Err(format!("{encoding} has no {role:?}")),
            }
        }
        if arrays.bias.is_some_and(|bias| bias.dtype != float) {
            return Err(format!("scales of type {float} and biases of another type"));
        }
        if arrays.global_scale.is_some() && encoding != Encoding::Micro(Micro::Nvfp4) {
            return Err(format!("{encoding} has no global scale, only nvfp4 has one"));
        }
        let stack = &shape[..shape.len().saturating_sub(2)];
        element_count(stack).ok_or("the number of matrices overflows")?;
        Ok(Self::again(encoding, shape, arrays))
    }

    /// The same for arrays that [`new`](Self::new) has accepted once: nothing is checked and nothing allocated.
    pub fn again(encoding: Encoding, shape: &[u64], arrays: Arrays<'a>) -> Self {
        let (columns, leading) = shape.split_last().map_or((1, &[][..]), |(last, leading)| (*last, leading));
        let (rows, stack) = leading.split_last().map_or((1, &[][..]), |(last, stack)| (*last, stack));
        Self {
            encoding,
            matrices: element_count(stack).unwrap_or(0) as usize,
            rows: rows as usize,
            columns: columns as usize,
            data: arrays.data,
            scale: arrays.scale,
            bias: arrays.bias,
            global_scale: arrays.global_scale,
        }
    }

    /// How the numbers are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The bytes of an array; none where there is no such array. The global scale is a number and not among them.
    pub fn array(&self, role: Role) -> &'a [u8] {
        match role {
            Role::Weight => self.data,
            Role::Scale => self.scale.map_or(&[], |scale| scale.bytes),
            Role::Bias => self.bias.map_or(&[], |bias| bias.bytes),
            Role::GlobalScale => &[],
        }
    }

    /// Rows of all matrices.
    pub fn rows(&self) -> usize {
        self.matrices * self.rows
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The numbers of the groups or blocks, for whoever computes with codes.
    pub fn scale(&self) -> Option<Numbers<'a>> {
        self.scale
    }

    /// The values of code 0 of the groups, for whoever computes with codes.
    pub fn bias(&self) -> Option<Numbers<'a>> {
        self.bias
    }

    /// What all numbers are multiplied with, for whoever computes with codes.
    pub fn global_scale(&self) -> Option<f32> {
        self.global_scale
    }

    /// One matrix of a stack: an expert.
    ///
    /// # Panics
    /// Where there is no such matrix.
    pub fn matrix(&self, index: usize) -> Self {
        assert!(index < self.matrices, "matrix {index} of {}", self.matrices);
        let part = |bytes: &'a [u8]| {
            let size = bytes.len() / self.matrices;
            &bytes[index * size..][..size]
        };
        let numbers = |numbers: Numbers<'a>| Numbers { bytes: part(numbers.bytes), ..numbers };
        Self {
            matrices: 1,
            data: part(self.data),
            scale: self.scale.map(numbers),
            bias: self.bias.map(numbers),
            ..*self
        }
    }

    /// The numbers of one row, counted over all matrices, as float32: exactly what the encoding says, one rounding for
    /// each operation of its definition.
    ///
    /// # Panics
    /// Where there is no such row, or `out` has not the length of a row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows() && out.len() == self.columns, "row {row} of {} into {}", self.rows(), out.len());
        codec::decode_row(self, row, out);
    }

    /// All numbers.
    ///
    /// # Panics
    /// Where `out` has not as many elements.
    pub fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows() * self.columns, "as many numbers as the weight has");
        if self.columns > 0 {
            for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
                self.decode_row(row, out);
            }
        }
    }

    /// The bytes of one row of an array that has the same number of bytes for each row.
    pub(crate) fn row_of(&self, bytes: &'a [u8], row: usize) -> &'a [u8] {
        self.rows_of(bytes, row, 1)
    }

    /// The bytes of `count` rows from `start` on, likewise.
    pub(crate) fn rows_of(&self, bytes: &'a [u8], start: usize, count: usize) -> &'a [u8] {
        let size = bytes.len() / self.rows();
        &bytes[start * size..][..count * size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvfp4_has_a_global_scale() {
        let scales = [0; 2];
        let scale = |bytes: usize| Some(Numbers { dtype: Dtype::U8, bytes: &scales[..bytes] });
        for (encoding, bytes, scale, accepted) in [
            (Encoding::Micro(Micro::Nvfp4), 16, scale(2), true),
            (Encoding::Micro(Micro::Mxfp4), 16, scale(1), false),
            (Encoding::Plain(Dtype::F32), 128, None, false),
        ] {
            let data = vec![0; bytes];
            let arrays = Arrays { data: &data, scale, bias: None, global_scale: None };
            assert!(Weight::new(encoding, &[1, 32], arrays).is_ok(), "{encoding}");
            let weight = Weight::new(encoding, &[1, 32], Arrays { global_scale: Some(2.0), ..arrays });
            assert_eq!(weight.is_ok(), accepted, "{encoding}: {:?}", weight.err());
        }
    }
}
