//! Learned positions of patches, see [`architectures::PatchPositions`].

use anyhow::Result;

use crate::weights::Weights;

/// A square of rows.
#[derive(Debug)]
pub(super) struct PatchPositions {
    /// `[side · side, width]`.
    numbers: Vec<f32>,
    side: usize,
    width: usize,
}

/// The two rows between which a patch lies on one side of the square, and the weight of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Between {
    rows: [usize; 2],
    share: f32,
}

impl Between {
    /// Returns the place of patch `at` of `count` on a side of `side` rows. The first and the last
    /// patch are at the ends of the side.
    fn of(at: usize, count: usize, side: usize) -> Self {
        let (place, steps) = (at * (side - 1), count.max(2) - 1);
        let first = place / steps;
        Self { rows: [first, (first + 1).min(side - 1)], share: (place % steps) as f32 / steps as f32 }
    }
}

impl PatchPositions {
    pub(super) fn load(weights: &Weights, own: &architectures::PatchPositions, width: usize) -> Result<Self> {
        let side = own.side as usize;
        Ok(Self { numbers: weights.numbers(&own.table, &[side * side, width])?, side, width })
    }

    /// Returns the number of elements of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Writes the positions of patches, `[patches, width]`. `places` are their rows and columns in
    /// a picture of `rows` rows and `columns` columns of patches.
    pub(super) fn fill(&self, places: &[[usize; 2]], [rows, columns]: [usize; 2], out: &mut [f32]) {
        for ([row, column], out) in places.iter().zip(out.chunks_exact_mut(self.width)) {
            let (down, right) = (Between::of(*row, rows, self.side), Between::of(*column, columns, self.side));
            out.fill(0.0);
            for (y, of_row) in down.rows.into_iter().zip([1.0 - down.share, down.share]) {
                for (x, of_column) in right.rows.into_iter().zip([1.0 - right.share, right.share]) {
                    let first = (y * self.side + x) * self.width;
                    let own = &self.numbers[first..first + self.width];
                    out.iter_mut().zip(own).for_each(|(out, own)| *out += of_row * of_column * own);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_stretched_over_the_picture() {
        let square = PatchPositions { numbers: vec![0.0, 1.0, 2.0, 3.0], side: 2, width: 1 };
        let filled = |places: &[[usize; 2]], sides| {
            let mut out = vec![0.0; places.len()];
            square.fill(places, sides, &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(filled(&[[0, 0], [0, 1], [0, 2], [1, 2]], [2, 3]), "0 0.5 1 3");
        assert_eq!(filled(&[[0, 0]], [1, 1]), "0", "a picture of one patch has the first position");
    }
}
