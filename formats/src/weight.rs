//! An encoded weight in memory: the common input of all code that reads numbers, for every source
//! format.
//!
//! The bytes are mapped or were read. A weight can also consist of some whole rows of a larger one.
//! A stack of matrices (the experts of a layer) is read matrix by matrix or row by row.

use crate::dtype::element_count;
use crate::encoding::{Micro, Role};
use crate::{Dtype, Encoding};

/// Numbers of a plain float type, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// F32, F16 or BF16; U8 if the encoding interprets the numbers as codes.
    pub dtype: Dtype,
    /// Bytes of the numbers, little-endian.
    pub bytes: &'a [u8],
}

/// An encoded weight.
///
/// Invariant: every array has exactly the bytes that encoding and shape require.
///
/// # Examples
///
/// ```
/// use lode_formats::weight::Arrays;
/// use lode_formats::{Dtype, Encoding, Weight};
///
/// let bytes: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let arrays = Arrays { data: &bytes, ..Arrays::default() };
/// let weight = Weight::new(Encoding::Plain(Dtype::F32), &[2, 2], arrays)?;
/// let mut row = [0.0; 2];
/// weight.decode_row(1, &mut row);
/// assert_eq!(row, [3.0, 4.0]);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    pub(crate) encoding: Encoding,
    /// Number of matrices in the stack; 1 for a single one.
    pub(crate) matrices: usize,
    /// Rows per matrix.
    pub(crate) rows: usize,
    /// Elements per row.
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
    /// Scales, one for each group or block.
    pub scale: Option<Numbers<'a>>,
    /// Biases, one for each group.
    pub bias: Option<Numbers<'a>>,
    /// Global scale of the tensor.
    pub global_scale: Option<f32>,
}

impl<'a> Weight<'a> {
    /// Combines the arrays of a weight.
    ///
    /// # Errors
    /// An array is missing, superfluous, or has another length than encoding and shape require.
    pub fn new(encoding: Encoding, shape: &[u64], arrays: Arrays<'a>) -> Result<Self, String> {
        let float = arrays.scale.map_or(Dtype::F32, |scale| scale.dtype);
        encoding.check_scale(float).map_err(|error| format!("{encoding} has scales of type {error}"))?;
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

    /// Like [`new`](Self::new), for arrays that it has accepted before: without checks or
    /// allocations.
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

    /// Returns the encoding.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the bytes of an array; empty if the weight has no such array. The global scale is a
    /// number and has no bytes here.
    pub fn array(&self, role: Role) -> &'a [u8] {
        match role {
            Role::Weight => self.data,
            Role::Scale => self.scale.map_or(&[], |scale| scale.bytes),
            Role::Bias => self.bias.map_or(&[], |bias| bias.bytes),
            Role::GlobalScale => &[],
        }
    }

    /// Returns the number of rows of all matrices.
    pub fn rows(&self) -> usize {
        self.matrices * self.rows
    }

    /// Returns the elements per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the scales of the groups or blocks, for kernels that compute with codes.
    pub fn scale(&self) -> Option<Numbers<'a>> {
        self.scale
    }

    /// Returns the values of code 0 of the groups, for kernels that compute with codes.
    pub fn bias(&self) -> Option<Numbers<'a>> {
        self.bias
    }

    /// Returns the multiplier of the whole tensor, for kernels that compute with codes.
    pub fn global_scale(&self) -> Option<f32> {
        self.global_scale
    }

    /// Returns one matrix of a stack, for instance an expert.
    ///
    /// # Panics
    /// If the matrix does not exist.
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

    /// Returns the bytes of one row of an array with the same number of bytes per row.
    pub(crate) fn row_of(&self, bytes: &'a [u8], row: usize) -> &'a [u8] {
        self.rows_of(bytes, row, 1)
    }

    /// Returns the bytes of `count` rows from `start`, likewise.
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
