//! Learned positions of patches, see [`architectures::PatchPositions`].

use anyhow::{Result, bail};

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
    Square { numbers: Vec<f32>, side: usize },
    /// `[count, width]` each.
    Axes { columns: Vec<f32>, lines: Vec<f32> },
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
        let tables = match own {
            architectures::PatchPositions::Square { table, side } => {
                let side = *side as usize;
                Tables::Square { numbers: weights.numbers(table, &[side * side, width])?, side }
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
        for (place, out) in places.iter().zip(out.chunks_exact_mut(self.width)) {
            match &self.tables {
                Tables::Square { numbers, side } => interpolated(numbers, *side, (*place, sides), out),
                Tables::Axes { columns, lines } => {
                    let [line, column] = *place;
                    let of_line = lines.chunks_exact(self.width).nth(line);
                    let of_column = columns.chunks_exact(self.width).nth(column);
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

/// Writes the position of a patch: the sum of the four rows around it by their weights.
fn interpolated(
    numbers: &[f32],
    side: usize,
    ([row, column], [rows, columns]): ([usize; 2], [usize; 2]),
    out: &mut [f32],
) {
    let (down, right) = (Between::of(row, rows, side), Between::of(column, columns, side));
    out.fill(0.0);
    for (y, of_row) in down.rows.into_iter().zip([1.0 - down.share, down.share]) {
        for (x, of_column) in right.rows.into_iter().zip([1.0 - right.share, right.share]) {
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
        let tables = Tables::Square { numbers: vec![0.0, 1.0, 2.0, 3.0], side: 2 };
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
    fn positions_of_columns_and_lines_are_added() {
        let tables = Tables::Axes { columns: vec![1.0, 2.0, 3.0], lines: vec![10.0, 20.0, 30.0] };
        let positions = PatchPositions { width: 1, tables };
        let mut out = [0.0; 2];
        positions.fill(&[[0, 2], [1, 0]], [2, 3], &mut out).expect("positions");
        assert_eq!(out.map(|x| x as i32), [13, 21]);
        assert!(positions.fill(&[[3, 0]], [4, 1], &mut out[..1]).is_err(), "there is no fourth line");
    }
}
