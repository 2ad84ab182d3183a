//! Conversion of a tensor to another encoding or order of rows, or with a constant added, written
//! as a stream.
//!
//! The arrays of an encoded weight are written one after the other, but encoding a row produces
//! parts of all arrays at once. Arrays after the codes are kept in memory if they are small.
//! Otherwise the rows are encoded again for each array, with the same result.

use formats::codec::{self, Encoded, EncodingTarget};
use formats::encoding::{PartShape, Role};
use formats::{Dtype, Encoding, Weight};

use crate::{Error, RowOrder, TensorSource};

/// Largest size of scales and biases that are kept in memory until the codes are written, in bytes.
const KEPT: u64 = 8 << 20;
/// Number of bytes of an array that are copied at a time.
const PIECE: u64 = 1 << 20;

/// Function that takes the next bytes of a result.
pub type Emit<'a> = dyn FnMut(&[u8]) -> Result<(), Error> + 'a;

/// Conversion of one tensor.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// Source of the numbers.
    pub source: TensorSource,
    /// Encoding of the result.
    pub target: EncodingTarget,
    /// Order of the rows in the result.
    pub order: RowOrder,
    /// Constant that is added to every number: Gemma's norms differ by 1 between formats.
    pub add: f32,
}

impl Conversion {
    /// Creates a conversion that changes nothing.
    pub fn copy(source: TensorSource) -> Self {
        let target = EncodingTarget { encoding: source.encoding, float: source.float(), global_scale: None };
        Self { source, target, order: RowOrder::Stored, add: 0.0 }
    }

    /// Creates a conversion to another encoding. Scales and biases have the source's dtype if it is
    /// a float.
    pub fn to(source: TensorSource, encoding: Encoding) -> Self {
        let float = match encoding {
            Encoding::Plain(dtype) => dtype,
            _ => source.float(),
        };
        Self { target: EncodingTarget { encoding, float, global_scale: None }, ..Self::copy(source) }
    }

    /// True if the numbers stay encoded as they are.
    pub fn keeps_encoding(&self) -> bool {
        self.source.encoding == self.target.encoding && self.add == 0.0
    }

    /// Returns the arrays that are written, in order.
    pub fn parts(&self) -> Result<Vec<PartShape>, Error> {
        let parts = self.target.encoding.parts(&self.source.shape, self.target.float);
        let mut parts = parts.map_err(|reason| self.refused(&reason))?;
        if self.keeps_encoding() && self.source.array(Role::GlobalScale).is_some() {
            parts.push(PartShape { role: Role::GlobalScale, dtype: Dtype::F32, shape: Vec::new() });
        }
        Ok(parts)
    }

    /// Writes all arrays, one after the other.
    ///
    /// # Errors
    /// An array cannot be read, there is no encoder for the encoding, or `emit` fails.
    pub fn write(&self, emit: &mut Emit<'_>) -> Result<(), Error> {
        let parts = self.parts()?;
        if self.keeps_encoding() || parts.iter().skip(1).map(PartShape::size).sum::<u64>() > KEPT {
            return parts.iter().try_for_each(|part| self.write_array(part.role, emit));
        }
        let mut rest = Encoded::default();
        self.encode(&mut |rows| {
            rest.scale.extend_from_slice(&rows.scale);
            rest.bias.extend_from_slice(&rows.bias);
            emit(&rows.data)
        })?;
        emit(&rest.scale)?;
        emit(&rest.bias)
    }

    /// Writes one array.
    pub fn write_array(&self, role: Role, emit: &mut Emit<'_>) -> Result<(), Error> {
        match (self.keeps_encoding(), self.order) {
            (true, RowOrder::Stored) => self.copy_array(role, emit),
            (true, order) => self.source.pieces(order, &mut |piece| emit(piece.array(role))),
            (false, _) => self.encode(&mut |rows| match role {
                Role::Weight => emit(&rows.data),
                Role::Scale => emit(&rows.scale),
                Role::Bias => emit(&rows.bias),
                Role::GlobalScale => Ok(()),
            }),
        }
    }

    fn copy_array(&self, role: Role, emit: &mut Emit<'_>) -> Result<(), Error> {
        let Some(array) = self.source.array(role) else { return Ok(()) };
        let mut buffer = vec![0; PIECE.min(array.size) as usize];
        let mut at = 0;
        while at < array.size {
            let piece = &mut buffer[..PIECE.min(array.size - at) as usize];
            let read = array.source.read_exact_at(piece, array.offset + at);
            read.map_err(|e| Error::io("read", array.source.name(), e))?;
            emit(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Encodes the rows piece by piece; each call of `each` gets new rows only.
    fn encode(&self, each: &mut dyn FnMut(&Encoded) -> Result<(), Error>) -> Result<(), Error> {
        let encoding = self.target.encoding;
        if !codec::can_encode(encoding) {
            return Err(self.refused(&format!("{encoding} cannot be written by this version")));
        }
        let mut rows = Encoded::default();
        self.source.pieces(self.order, &mut |piece| {
            rows.data.clear();
            rows.scale.clear();
            rows.bias.clear();
            if self.add == 0.0 {
                codec::transcode(piece, self.target, &mut rows);
            } else {
                codec::encode(&self.added(piece), piece.columns(), self.target, &mut rows);
            }
            each(&rows)
        })
    }

    fn added(&self, piece: &Weight<'_>) -> Vec<f32> {
        let mut numbers = vec![0.0; piece.rows() * piece.columns()];
        piece.decode(&mut numbers);
        for number in &mut numbers {
            *number += self.add;
        }
        numbers
    }

    fn refused(&self, reason: &str) -> Error {
        Error::Source(format!("tensor `{}`: {reason}", self.source.name))
    }
}
