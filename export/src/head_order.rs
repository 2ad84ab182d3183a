//! Changes of tensors between formats: translates the rules of `architectures` to the options of a
//! conversion.

use architectures::exchange::{HeadOrder, TensorChange};

use super::array::Change;
use import::{Error, RowOrder, StoredTensor};

/// Returns the change as options of a conversion.
///
/// # Errors
/// [`Error::Source`] if the rows are not a whole number of heads, or the change multiplies numbers.
pub(super) fn change(tensor: &StoredTensor, change: &TensorChange) -> Result<Change, Error> {
    let refused = |reason: String| Error::Source(format!("tensor `{}`: {reason}", tensor.name));
    let heads = |head_dim: u64| {
        let rows = match tensor.shape.as_slice() {
            [rows] | [rows, _] => *rows,
            other => return Err(refused(format!("{} dimensions, rows of heads have 1 or 2", other.len()))),
        };
        let heads = rows.checked_div(head_dim).filter(|heads| *heads > 0 && heads * head_dim == rows);
        heads.ok_or_else(|| refused(format!("{rows} rows are not heads of {head_dim}")))
    };
    let order = match change.rows {
        HeadOrder::Same => RowOrder::Stored,
        HeadOrder::ToInterleaved { head_dim } => RowOrder::Interleave { heads: heads(head_dim)? },
        HeadOrder::ToHalves { head_dim } => RowOrder::Halve { heads: heads(head_dim)? },
    };
    let add = match change.numbers {
        Some(numbers) if (numbers.multiply - 1.0).abs() > f64::EPSILON => {
            return Err(refused(format!("its numbers would have to be multiplied by {}", numbers.multiply)));
        }
        numbers => numbers.map_or(0.0, |numbers| numbers.add as f32),
    };
    Ok(Change { name: change.name.clone(), order, add })
}
