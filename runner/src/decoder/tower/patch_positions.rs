//! Learned positions of patches, see [`architectures::PatchPositions`].

use anyhow::{Result, bail};
use architectures::SquareFit;

use crate::weights::Weights;

/// Tables of rows of `width` numbers.
#[derive(Debug)]
pub(super) struct PatchPositions {
    width: usize,
    tables: Tables,
}

#[derive(Debug)]
enum Tables {
    /// `[side · side, width]`.
    Square { numbers: Vec<f32>, side: usize, fit: SquareFit },
    /// `[count, width]` each.
    Axes { columns: Vec<f32>, lines: Vec<f32> },
}

/// The rows of one side of the square that a patch takes, with their weights, whose sum is 1.
#[derive(Clone, Debug, PartialEq)]
struct RowShares {
    first: usize,
    weights: Vec<f32>,
}

impl RowShares {
    /// Returns the shares of patch `at` of `count` on a side of `side` rows.
    fn of(fit: SquareFit, at: usize, count: usize, side: usize) -> Self {
        match fit {
            SquareFit::Corners => Self::between_corners(at, count, side),
            SquareFit::Area => Self::of_area(at, count, side),
        }
    }

    /// The first and the last patch are at the ends of the side.
    fn between_corners(at: usize, count: usize, side: usize) -> Self {
        let (place, steps) = (at * (side - 1), count.max(2) - 1);
        let (first, share) = (place / steps, (place % steps) as f32 / steps as f32);
        let weights = if first + 1 < side { vec![1.0 - share, share] } else { vec![1.0] };
        Self { first, weights }
    }

    /// Patches and rows cover the same area. Weights decrease linearly with the distance from the
    /// middle of the patch, up to one row, or one patch if it is larger.
    ///
    /// Source: `resize_positional_embeddings` of `SigLIP` 2 in transformers.
    fn of_area(at: usize, count: usize, side: usize) -> Self {
        let scale = side as f32 / count as f32;
        let (support, center) = (scale.max(1.0), (at as f32 + 0.5) * scale - 0.5);
        let weight = |row: usize| (1.0 - (row as f32 - center).abs() / support).max(0.0);
        let first = (0..side).find(|row| weight(*row) > 0.0).unwrap_or(0);
        let weights: Vec<f32> = (first..side).map(weight).take_while(|weight| *weight > 0.0).collect();
        let sum: f32 = weights.iter().sum();
        Self { first, weights: weights.into_iter().map(|weight| weight / sum).collect() }
    }
}

impl PatchPositions {
    pub(super) fn load(weights: &Weights, own: &architectures::PatchPositions, width: usize) -> Result<Self> {
        let tables = match own {
            architectures::PatchPositions::Square { table, side, fit } => {
                let side = *side as usize;
                Tables::Square { numbers: weights.numbers(table, &[side * side, width])?, side, fit: *fit }
            }
            architectures::PatchPositions::Axes { columns, lines, count } => {
                let read = |table| weights.numbers(table, &[*count as usize, width]);
                Tables::Axes { columns: read(columns)?, lines: read(lines)? }
            }
        };
        Ok(Self { width, tables })
    }

    /// Returns the number of elements of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Writes the positions of patches, `[patches, width]`. `places` are their rows and columns in
    /// a picture of `sides` rows and columns of patches.
    ///
    /// # Errors
    /// A picture has more columns or lines than there are positions.
    pub(super) fn fill(&self, places: &[[usize; 2]], sides: [usize; 2], out: &mut [f32]) -> Result<()> {
        match &self.tables {
            Tables::Square { numbers, side, fit } => {
                let [lines, columns] = sides.map(|count| -> Vec<RowShares> {
                    (0..count).map(|at| RowShares::of(*fit, at, count, *side)).collect()
                });
                for ([line, column], out) in places.iter().zip(out.chunks_exact_mut(self.width)) {
                    add_shares(numbers, *side, [&lines[*line], &columns[*column]], out);
                }
            }
            Tables::Axes { columns, lines } => {
                for ([line, column], out) in places.iter().zip(out.chunks_exact_mut(self.width)) {
                    let of_line = lines.chunks_exact(self.width).nth(*line);
                    let of_column = columns.chunks_exact(self.width).nth(*column);
                    let (Some(line), Some(column)) = (of_line, of_column) else {
                        bail!("there is no position for line {line} and column {column} of a picture");
                    };
                    for ((out, line), column) in out.iter_mut().zip(line).zip(column) {
                        *out = column + line;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes the position of a patch: the sum of the rows around it by their weights.
fn add_shares(numbers: &[f32], side: usize, [down, right]: [&RowShares; 2], out: &mut [f32]) {
    out.fill(0.0);
    for (y, of_row) in (down.first..).zip(&down.weights) {
        for (x, of_column) in (right.first..).zip(&right.weights) {
            let first = (y * side + x) * out.len();
            let own = &numbers[first..first + out.len()];
            out.iter_mut().zip(own).for_each(|(out, own)| *out += of_row * of_column * own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_stretched_over_the_picture() {
        let tables = Tables::Square { numbers: vec![0.0, 1.0, 2.0, 3.0], side: 2, fit: SquareFit::Corners };
        let square = PatchPositions { width: 1, tables };
        let filled = |places: &[[usize; 2]], sides| {
            let mut out = vec![0.0; places.len()];
            square.fill(places, sides, &mut out).expect("positions");
            out.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(filled(&[[0, 0], [0, 1], [0, 2], [1, 2]], [2, 3]), "0 0.5 1 3");
        assert_eq!(filled(&[[0, 0]], [1, 1]), "0", "a picture of one patch has the first position");
    }

    #[test]
    fn positions_of_areas_are_means() {
        let shares = |at, count, side| {
            let shares = RowShares::of(SquareFit::Area, at, count, side);
            (shares.first, shares.weights)
        };
        assert_eq!(shares(1, 3, 3), (1, vec![1.0]), "the same grid");
        assert_eq!(shares(0, 1, 2), (0, vec![0.5, 0.5]), "one patch has the mean");
        assert_eq!(shares(1, 4, 2), (0, vec![0.75, 0.25]));
        assert_eq!(shares(0, 4, 2), (0, vec![1.0]), "the end is not extrapolated");
    }

    #[test]
    fn positions_of_columns_and_lines_are_added() {
        let tables = Tables::Axes { columns: vec![1.0, 2.0, 3.0], lines: vec![10.0, 20.0, 30.0] };
        let positions = PatchPositions { width: 1, tables };
        let mut out = [0.0; 2];
        positions.fill(&[[0, 2], [1, 0]], [2, 3], &mut out).expect("positions");
        assert_eq!(out.map(|x| x as i32), [13, 21]);
        assert!(positions.fill(&[[3, 0]], [4, 1], &mut out[..1]).is_err(), "there is no fourth line");
    }
}
