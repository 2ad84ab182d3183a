//! Reads a weight from any source, some whole rows at a time.
//!
//! Memory is bounded by the size of a piece, not of the tensor. A piece has as many rows as fit
//! into [`PIECE`] numbers, but at least one.

use std::ops::Range;
use std::sync::Arc;

use formats::dtype::element_count;
use formats::encoding::Role;
use formats::weight::{Arrays, Numbers};
use formats::{Dtype, Encoding, Weight};

use crate::{Error, OpenBlob, ReadAt, StoredTensor};

/// Number of elements of a piece.
const PIECE: u64 = 1 << 20;
/// Longest row that is read, in elements, to bound memory. The widest known matrices have some
/// hundred thousand.
const MAX_ROW: u64 = 1 << 24;
/// Number of elements of a vector that are sampled together.
const VECTOR_PIECE: u64 = 256;

/// Weight or other tensor whose arrays can be read.
#[derive(Clone, Debug)]
pub struct TensorSource {
    /// Name for error messages.
    pub name: String,
    /// Encoding of the numbers.
    pub encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Arrays of the tensor.
    pub arrays: Vec<ArraySource>,
}

/// Location of an array of a weight.
#[derive(Clone, Debug)]
pub struct ArraySource {
    /// Role of the array in the weight.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// File or blob that has the array.
    pub source: Arc<dyn ReadAt>,
    /// Offset of the first byte there.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Order of rows. Pairs of rows of a head are rotated together by the rotary embedding; formats
/// differ in the positions of the two rows of a pair. One-dimensional tensors (biases) are ordered
/// element by element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// The stored order.
    #[default]
    Stored,
    /// Converts from halves, as in Hugging Face's files, to neighbours, as in GGUF files of the
    /// llama family.
    Interleave {
        /// Number of heads to which the rows belong.
        heads: u64,
    },
    /// Converts from neighbours to halves.
    Halve {
        /// Number of heads to which the rows belong.
        heads: u64,
    },
}

impl RowOrder {
    fn heads(self) -> Option<u64> {
        match self {
            Self::Stored => None,
            Self::Interleave { heads } | Self::Halve { heads } => Some(heads),
        }
    }

    /// Returns the stored row of a head that goes to `position`; a head has `rows` rows.
    fn taken_from(self, position: usize, rows: usize) -> usize {
        let half = rows / 2;
        match self {
            Self::Stored => position,
            Self::Interleave { .. } => position % 2 * half + position / 2,
            Self::Halve { .. } => position % half * 2 + position / half,
        }
    }
}

impl TensorSource {
    /// Opens the blobs of a stored tensor.
    pub fn of(tensor: &StoredTensor, open: &OpenBlob) -> Result<Self, Error> {
        let arrays = tensor.parts.iter().map(|part| {
            let source = open(&part.blob).map_err(|e| Error::io("open", part.blob, e))?;
            Ok(ArraySource { role: part.role, dtype: part.dtype, source, offset: part.offset, size: part.size })
        });
        Ok(Self {
            name: tensor.name.clone(),
            encoding: tensor.encoding,
            shape: tensor.shape.clone(),
            arrays: arrays.collect::<Result<_, Error>>()?,
        })
    }

    /// Returns the array with this role.
    pub fn array(&self, role: Role) -> Option<&ArraySource> {
        self.arrays.iter().find(|array| array.role == role)
    }

    /// Returns the dtype of scales and biases, or of plain elements; F32 for blocks, which contain
    /// F16 scales.
    pub fn float(&self) -> Dtype {
        match self.encoding {
            Encoding::Plain(dtype) => dtype,
            encoding => encoding.float_of_scales(self.array(Role::Scale).map(|array| array.dtype)),
        }
    }

    /// Passes the whole tensor to `each`, piece by piece, in the given order of rows. Every piece
    /// is a matrix of whole rows; a plain tensor of one dimension is split into parts of its only
    /// row.
    ///
    /// # Errors
    /// `each` fails, an array cannot be read, or the arrays do not match encoding and shape.
    pub fn pieces(&self, order: RowOrder, each: &mut dyn FnMut(&Weight<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let geometry = Geometry::of(self, order)?;
        let mut buffers = vec![Vec::new(); self.arrays.len()];
        for matrix in 0..geometry.matrices {
            let mut row = 0;
            while row < geometry.rows {
                let end = geometry.rows.min(row + geometry.step);
                self.read(&geometry, matrix, row..end, &mut buffers)?;
                if let Some(heads) = order.heads() {
                    let head = (geometry.rows / heads) as usize;
                    for (array, buffer) in self.arrays.iter().zip(&mut buffers) {
                        if array.role != Role::GlobalScale {
                            reorder(buffer, order, head, (end - row) as usize);
                        }
                    }
                }
                each(&self.weight(&geometry.shape(end - row), &buffers)?)?;
                row = end;
            }
        }
        Ok(())
    }

    /// Passes some whole rows to `each`, spread evenly over the tensor: about as many as have
    /// `most` elements, and at least one. A smaller tensor is passed completely, as by
    /// [`pieces`](Self::pieces).
    ///
    /// # Errors
    /// The same as for [`pieces`](Self::pieces).
    pub fn sample(&self, most: u64, each: &mut dyn FnMut(&Weight<'_>) -> Result<(), Error>) -> Result<(), Error> {
        if element_count(&self.shape).is_some_and(|elements| elements <= most) {
            return self.pieces(RowOrder::Stored, each);
        }
        let geometry = Geometry::of(self, RowOrder::Stored)?;
        // Elements of a vector are read in runs.
        let unit = if geometry.vector { VECTOR_PIECE } else { 1 };
        let of_matrix = geometry.rows.div_ceil(unit);
        let units = u128::from(geometry.matrices) * u128::from(of_matrix);
        let wanted = u128::from((most / (unit * geometry.columns)).max(1)).min(units);
        let mut buffers = vec![Vec::new(); self.arrays.len()];
        for number in 0..wanted {
            // A random position in each part of the tensor: equal distances would select the same
            // rows of each head and expert.
            let (start, end) = (number * units / wanted, (number + 1) * units / wanted);
            let place = (start + u128::from(scattered(number as u64)) % (end - start)) as u64;
            let (matrix, row) = (place / of_matrix, place % of_matrix * unit);
            let end = geometry.rows.min(row + unit);
            self.read(&geometry, matrix, row..end, &mut buffers)?;
            each(&self.weight(&geometry.shape(end - row), &buffers)?)?;
        }
        Ok(())
    }

    /// Reads the rows of every array into its buffer.
    fn read(&self, geometry: &Geometry, matrix: u64, rows: Range<u64>, buffers: &mut [Vec<u8>]) -> Result<(), Error> {
        for (array, buffer) in self.arrays.iter().zip(buffers) {
            let (from, to) = geometry.bytes(self, array, matrix, &rows);
            buffer.resize((to - from) as usize, 0);
            let read = array.source.read_exact_at(buffer, array.offset + from);
            read.map_err(|e| Error::io("read", array.source.name(), e))?;
        }
        Ok(())
    }

    fn weight<'a>(&self, shape: &[u64], buffers: &'a [Vec<u8>]) -> Result<Weight<'a>, Error> {
        let mut arrays = Arrays::default();
        for (array, bytes) in self.arrays.iter().zip(buffers) {
            let numbers = Some(Numbers { dtype: array.dtype, bytes });
            match array.role {
                Role::Weight => arrays.data = bytes,
                Role::Scale => arrays.scale = numbers,
                Role::Bias => arrays.bias = numbers,
                Role::GlobalScale => {
                    let bytes = bytes.first_chunk::<4>().filter(|_| array.dtype == Dtype::F32);
                    let bytes = bytes.ok_or_else(|| self.malformed("the global scale is not one F32 number"))?;
                    arrays.global_scale = Some(f32::from_le_bytes(*bytes));
                }
            }
        }
        Weight::new(self.encoding, shape, arrays).map_err(|reason| self.malformed(&reason))
    }

    fn malformed(&self, reason: &str) -> Error {
        Error::Source(format!("tensor `{}`: {reason}", self.name))
    }
}

/// Division of a tensor into pieces.
struct Geometry {
    matrices: u64,
    /// Number of rows of a matrix.
    rows: u64,
    /// Number of elements of a row.
    columns: u64,
    /// Number of rows of a piece.
    step: u64,
    /// True if the rows are the elements of a plain vector.
    vector: bool,
}

impl Geometry {
    fn of(tensor: &TensorSource, order: RowOrder) -> Result<Self, Error> {
        let elements =
            element_count(&tensor.shape).ok_or_else(|| tensor.malformed("the number of elements overflows"))?;
        tensor.check_sizes()?;
        let plain = matches!(tensor.encoding, Encoding::Plain(_));
        let (matrices, rows, columns) = match (tensor.shape.as_slice(), order) {
            (_, _) if elements == 0 => (0, 0, 0),
            // Elements of a plain vector are independent.
            ([] | [_], _) if plain => (1, elements, 1),
            ([] | [_], _) => (1, 1, elements),
            ([rows, columns], _) => (1, *rows, *columns),
            ([stack @ .., rows, columns], RowOrder::Stored) => (stack.iter().product(), *rows, *columns),
            (_, _) => return Err(tensor.malformed("the rows of a stack of matrices cannot be put into another order")),
        };
        if columns > MAX_ROW {
            return Err(tensor.malformed(&format!("rows of {columns} numbers are longer than the {MAX_ROW} supported")));
        }
        let unit = match (tensor.encoding, order.heads()) {
            (Encoding::BlockFp8 { .. }, Some(_)) => {
                return Err(tensor.malformed("rows that share scales cannot be put into another order"));
            }
            // One scale for all rows of a matrix applies to any subset of rows.
            (Encoding::BlockFp8 { rows: block, .. }, None) if u64::from(block) >= rows => 1,
            (Encoding::BlockFp8 { rows: block, .. }, None) => u64::from(block),
            (_, Some(heads)) if heads > 0 && rows.is_multiple_of(heads * 2) => rows / heads,
            (_, Some(heads)) => return Err(tensor.malformed(&format!("{rows} rows are not pairs of {heads} heads"))),
            (_, None) => 1,
        };
        if unit.checked_mul(columns).is_none_or(|numbers| numbers > MAX_ROW.max(elements.min(4 * MAX_ROW))) {
            return Err(tensor.malformed(&format!("{unit} rows of {columns} numbers are too many for one piece")));
        }
        let step = PIECE.checked_div(unit * columns).unwrap_or(1).max(1) * unit;
        Ok(Self { matrices, rows, columns, step, vector: plain && tensor.shape.len() < 2 })
    }

    /// Returns the shape of this many rows.
    fn shape(&self, rows: u64) -> [u64; 2] {
        if self.vector { [1, rows] } else { [rows, self.columns] }
    }

    /// Returns the byte range of an array that belongs to some rows.
    fn bytes(&self, tensor: &TensorSource, array: &ArraySource, matrix: u64, rows: &Range<u64>) -> (u64, u64) {
        let units = |from: u64, to: u64, count: u64| {
            // Sizes were checked, so every unit has the same whole number of bytes.
            let size = array.size / (self.matrices * count);
            ((matrix * count + from) * size, (matrix * count + to) * size)
        };
        match (array.role, tensor.encoding) {
            (Role::GlobalScale, _) => (0, array.size),
            (Role::Scale, Encoding::BlockFp8 { rows: block, .. }) => {
                let block = u64::from(block);
                units(rows.start / block, rows.end.div_ceil(block), self.rows.div_ceil(block))
            }
            _ => units(rows.start, rows.end, self.rows),
        }
    }
}

impl TensorSource {
    /// Checks that every array has the size that encoding and shape require.
    fn check_sizes(&self) -> Result<(), Error> {
        let float = self.array(Role::Scale).map_or(Dtype::F32, |array| array.dtype);
        let parts = self.encoding.parts(&self.shape, float).map_err(|reason| self.malformed(&reason))?;
        for part in &parts {
            let (role, expected) = (part.role, part.size());
            match self.array(role).map(|array| array.size) {
                Some(size) if size == expected => {}
                Some(size) => {
                    return Err(self.malformed(&format!("its {role:?} has {size} bytes, expected {expected}")));
                }
                None => return Err(self.malformed(&format!("{} needs a {role:?}, there is none", self.encoding))),
            }
        }
        Ok(())
    }
}

/// Returns a deterministic pseudo-random number: the mixer of `SplitMix64` (Steele, Lea, Flood
/// 2014).
fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Reorders the rows of whole heads.
fn reorder(buffer: &mut [u8], order: RowOrder, head: usize, rows: usize) {
    let size = buffer.len() / rows;
    if size == 0 {
        return;
    }
    let stored = buffer.to_vec();
    for (position, row) in buffer.chunks_exact_mut(size).enumerate() {
        let from = position / head * head + order.taken_from(position % head, head);
        row.copy_from_slice(&stored[from * size..][..size]);
    }
}

#[cfg(test)]
mod tests;
