//! The shares by which parts of layers read, write and mix several residual streams.

use kernels::elementwise::sigmoid;

use super::Cpu;
use crate::backend::{ShareFactors, StreamShares};

/// Makes the shares of a token, `[made]`, of its numbers, `[numbers]`.
pub(super) fn make(rule: &StreamShares<Cpu>, numbers: &[f32], out: &mut [f32]) {
    let (count, epsilon) = (rule.count, rule.epsilon);
    let (reads, rows) = out.split_at_mut(count);
    let number = |at: usize, factor: f32| factor * numbers[at] + rule.bias[at];
    for (at, share) in reads.iter_mut().enumerate() {
        *share = sigmoid(number(at, rule.factors.read())) + epsilon;
    }
    let ShareFactors::ReadWriteMix([_, of_writes, of_shares]) = rule.factors else { return };
    // Each row has the shares of the streams before the part in a stream behind it, which is a
    // column of the balanced matrix, and the share of the part's output.
    let width = count + 1;
    for (behind, row) in rows.chunks_exact_mut(width).enumerate() {
        for (before, share) in row[..count].iter_mut().enumerate() {
            *share = number((2 + before) * count + behind, of_shares);
        }
        row[count] = 2.0 * sigmoid(number(count + behind, of_writes));
    }
    for before in 0..count {
        let largest = rows.chunks_exact(width).map(|row| row[before]).fold(f32::NEG_INFINITY, f32::max);
        rows.chunks_exact_mut(width).for_each(|row| row[before] = (row[before] - largest).exp());
        divide_by_sum(rows, width, before, 0.0);
        rows.chunks_exact_mut(width).for_each(|row| row[before] += epsilon);
    }
    for iteration in 0..rule.iterations {
        if iteration > 0 {
            (0..count).for_each(|before| divide_by_sum(rows, width, before, epsilon));
        }
        for row in rows.chunks_exact_mut(width) {
            let sum = row[..count].iter().sum::<f32>() + epsilon;
            row[..count].iter_mut().for_each(|share| *share /= sum);
        }
    }
}

/// Divides an element of all rows by their sum and `epsilon`.
fn divide_by_sum(rows: &mut [f32], width: usize, at: usize, epsilon: f32) {
    let sum = rows.chunks_exact(width).map(|row| row[at]).sum::<f32>() + epsilon;
    rows.chunks_exact_mut(width).for_each(|row| row[at] /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_balanced() {
        let rule = StreamShares {
            count: 2,
            factors: ShareFactors::ReadWriteMix([1.0, 0.5, 2.0]),
            bias: [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0].into(),
            epsilon: 1e-6,
            iterations: 20,
        };
        assert_eq!((rule.factors.numbers(2), rule.made()), (8, 8));
        let mut out = [0.0; 8];
        make(&rule, &[0.0, 1.0, 0.0, 4.0, 0.5, -0.5, 0.25, 1.0], &mut out);
        // By PyTorch, with the formulas of transformers.
        let expected = [0.5, 0.8808, 0.9047, 0.0953, 1.0, 0.0954, 0.9046, 1.7616];
        assert!(out.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 1e-4), "{out:?}");
        let leaving = StreamShares { factors: ShareFactors::Read(2.0), bias: [0.0, 1.0].into(), ..rule };
        make(&leaving, &[0.5, -0.5], &mut out[..leaving.made()]);
        assert!((out[0] - 0.731_06).abs() < 1e-4 && (out[1] - 0.5).abs() < 1e-4, "{out:?}");
    }
}
