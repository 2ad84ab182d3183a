//! Report of a quantization: the change of each tensor, and totals.

use formats::Encoding;

use super::float;
use crate::{Decision, Error, StoredTensor};

/// Tensor before and after the quantization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRow {
    /// Canonical name.
    pub name: String,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Encoding before.
    pub from: Encoding,
    /// Decision about the tensor.
    pub decision: Decision,
    /// Size of its arrays in bytes.
    pub before: u64,
    /// Size of its arrays in the new model, in bytes.
    pub after: u64,
}

impl TensorRow {
    pub(super) fn new(tensor: &StoredTensor, decision: Decision) -> Result<Self, Error> {
        let before = tensor.parts.iter().map(|part| part.size).fold(0, u64::saturating_add);
        let after = match decision {
            Decision::Keep(_) => before,
            Decision::Drop => 0,
            Decision::Encode(to) => {
                let float = if let Encoding::Plain(dtype) = to { dtype } else { float(tensor) };
                let parts = to.parts(&tensor.shape, float);
                let parts = parts.map_err(|reason| Error::Source(format!("tensor `{}`: {reason}", tensor.name)))?;
                parts.iter().map(formats::encoding::PartShape::size).fold(0, u64::saturating_add)
            }
        };
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        Ok(Self { name, shape, from: tensor.encoding, decision, before, after })
    }
}

/// Totals of a quantization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of encoded tensors.
    pub encoded: u64,
    /// Number of unchanged tensors.
    pub kept: u64,
    /// Number of dropped tensors.
    pub dropped: u64,
    /// Size of all tensors in bytes.
    pub before: u64,
    /// Size of all tensors in the new model, in bytes.
    pub after: u64,
}

impl Totals {
    pub(super) fn of(rows: &[TensorRow]) -> Self {
        let mut totals = Self::default();
        for row in rows {
            let count = match row.decision {
                Decision::Keep(_) => &mut totals.kept,
                Decision::Drop => &mut totals.dropped,
                Decision::Encode(_) => &mut totals.encoded,
            };
            *count += 1;
            totals.before = totals.before.saturating_add(row.before);
            totals.after = totals.after.saturating_add(row.after);
        }
        totals
    }
}
