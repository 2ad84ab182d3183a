//! FP8 matrices with a scale for each block, as `DeepSeek` publishes them:
//! `value = e4m3(code) · scale`.
//!
//! `DeepSeek` names the multiplier of the elements `weight_scale_inv`. Blocks at the lower and
//! right edge are cut off at the end of the matrix.

use super::float;
use super::small_float::E4M3;
use crate::Weight;

pub(super) fn decode_row(weight: &Weight<'_>, rows: usize, columns: usize, row: usize, out: &mut [f32]) {
    let codes = weight.row_of(weight.data, row);
    let scale = scales_of(weight, rows, columns, row);
    for (block, (codes, out)) in codes.chunks(columns).zip(out.chunks_mut(columns)).enumerate() {
        let scale = scale(block);
        for (code, out) in codes.iter().zip(out) {
            *out = E4M3[usize::from(*code)] * scale;
        }
    }
}

/// Computes the multiplier of the elements of each block of a row.
pub(super) fn scales(weight: &Weight<'_>, rows: usize, columns: usize, row: usize, out: &mut [f32]) {
    let scale = scales_of(weight, rows, columns, row);
    for (block, out) in out.iter_mut().enumerate() {
        *out = scale(block);
    }
}

fn scales_of(weight: &Weight<'_>, rows: usize, columns: usize, row: usize) -> impl Fn(usize) -> f32 {
    let scale = weight.scale.expect("invariant: a block FP8 weight has scales");
    let (matrix, row) = (row / weight.rows, row % weight.rows);
    let across = weight.columns.div_ceil(columns);
    let first = (matrix * weight.rows.div_ceil(rows) + row / rows) * across;
    move |block| float::get(scale, first + block)
}

#[cfg(test)]
mod tests {
    use crate::weight::{Arrays, Numbers};
    use crate::{Dtype, Encoding, Weight};

    #[test]
    fn blocks_at_the_edges_are_cut_off() {
        // Two 3 x 5 matrices in 2 x 2 blocks: each has 2 x 3 scales, whose values here are their
        // indices.
        let scales: Vec<u8> = (0..12u8).flat_map(|at| f32::from(at).to_le_bytes()).collect();
        let codes = [0x38; 30];
        let arrays =
            Arrays { data: &codes, scale: Some(Numbers { dtype: Dtype::F32, bytes: &scales }), ..Arrays::default() };
        let encoding = Encoding::BlockFp8 { rows: 2, columns: 2 };
        let weight = Weight::new(encoding, &[2, 3, 5], arrays).expect("the lengths fit");
        let mut out = vec![0.0; 30];
        weight.decode(&mut out);
        let expected: Vec<f32> = [0, 0, 3, 6, 6, 9]
            .into_iter()
            .flat_map(|first: u8| [0, 0, 1, 1, 2].map(|block| f32::from(first + block)))
            .collect();
        assert_eq!(out, expected);
        let mut row = vec![0.0; 5];
        weight.matrix(1).decode_row(2, &mut row);
        assert_eq!(row, expected[25..]);
    }
}
