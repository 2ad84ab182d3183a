//! Tests of the sources of tensors.

use super::*;
use crate::read_at::InMemory;

fn array(role: Role, dtype: Dtype, bytes: Vec<u8>) -> ArraySource {
    ArraySource { role, dtype, size: bytes.len() as u64, source: Arc::new(InMemory(bytes)), offset: 0 }
}

fn floats(shape: &[u64]) -> TensorSource {
    let count: u64 = shape.iter().product();
    let bytes = (0..count).flat_map(|n| (n as f32).to_le_bytes()).collect();
    TensorSource {
        name: "t".to_owned(),
        encoding: Encoding::Plain(Dtype::F32),
        shape: shape.to_vec(),
        arrays: vec![array(Role::Weight, Dtype::F32, bytes)],
    }
}

fn read(tensor: &TensorSource, order: RowOrder) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    tensor.pieces(order, &mut |piece| {
        let mut numbers = vec![0.0; piece.rows() * piece.columns()];
        piece.decode(&mut numbers);
        all.extend(numbers);
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn orders_lead_back() {
    for rows in [2, 6, 16] {
        let (one, other) = (RowOrder::Interleave { heads: 1 }, RowOrder::Halve { heads: 1 });
        for position in 0..rows {
            assert_eq!(one.taken_from(other.taken_from(position, rows), rows), position);
        }
    }
    assert_eq!(
        (0..6).map(|n| RowOrder::Interleave { heads: 1 }.taken_from(n, 6)).collect::<Vec<_>>(),
        [0, 3, 1, 4, 2, 5]
    );
}

#[test]
#[expect(clippy::cast_sign_loss, reason = "the numbers are counted from 0")]
fn samples_are_spread_over_all_of_a_tensor() {
    let sampled = |tensor: &TensorSource, most| {
        let mut all = Vec::new();
        let each = &mut |piece: &Weight<'_>| {
            let mut numbers = vec![0.0; piece.rows() * piece.columns()];
            piece.decode(&mut numbers);
            all.extend(numbers);
            Ok(())
        };
        tensor.sample(most, each).expect("it can be read");
        all
    };
    // A row holds its index twice, which identifies it.
    let rows = |numbers: Vec<f32>| -> Vec<usize> { numbers.chunks(2).map(|row| row[0] as usize / 2).collect() };
    for (shape, most, parts) in [(&[8, 2][..], 4, 2), (&[3, 4, 2], 6, 3), (&[64, 2], 16, 8)] {
        let (found, all) = (rows(sampled(&floats(shape), most)), shape.iter().product::<u64>() as usize / 2);
        assert_eq!(found.len(), parts, "{shape:?}");
        let is_apart = |(part, row): (usize, &usize)| (part * all / parts..(part + 1) * all / parts).contains(row);
        assert!(found.iter().enumerate().all(is_apart), "{shape:?}: {found:?}");
    }
    let distances: std::collections::BTreeSet<usize> =
        rows(sampled(&floats(&[64, 2]), 16)).windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(distances.len() > 1, "not at equal distances");
    assert_eq!(sampled(&floats(&[8, 2]), 1).len(), 2, "one row at least");
    assert_eq!(sampled(&floats(&[8, 2]), 16).len(), 16, "all of it");
    assert!(sampled(&floats(&[1000]), 512).len() <= 512, "pieces of a vector");
}

#[test]
fn refuses_what_does_not_fit() {
    let mut short = floats(&[4, 4]);
    short.arrays[0].size -= 4;
    for (tensor, order, expect) in [
        (short, RowOrder::Stored, "60 bytes, expected 64"),
        (floats(&[6, 2]), RowOrder::Halve { heads: 2 }, "not pairs of 2 heads"),
        (floats(&[2, 4, 2]), RowOrder::Halve { heads: 1 }, "stack"),
    ] {
        let error = read(&tensor, order).expect_err(expect).to_string();
        assert!(error.contains("tensor `t`") && error.contains(expect), "{error}");
    }
}
