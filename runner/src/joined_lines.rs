//! Lines of a picture whose tiles are joined: the rows of the small copy, then the lines of the
//! whole picture without its padding, each with a row at its end.
//!
//! Source: `pack_image_features` and `unpad_image` of `LlavaNextModel` in transformers.

use std::ops::Range;

use pictures::PictureParts;

/// The rows of a picture's tiles that are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedLines {
    /// Number of tiles in a row of the picture.
    tiles: usize,
    /// Rows of each side of a tile, and of the small copy.
    side: usize,
    lines: Range<usize>,
    columns: Range<usize>,
}

impl JoinedLines {
    /// Returns the lines of a picture; `side` is the number of rows of each side of a tile.
    #[expect(clippy::cast_sign_loss, reason = "sides are not negative")]
    pub(crate) fn of(parts: &PictureParts, side: usize) -> Self {
        let (columns, lines) = (parts.columns * side, parts.rows * side);
        let (width, height) = (parts.original.width as f64, parts.original.height as f64);
        // Python rounds to seven digits, then cuts.
        let whole = |x: f64| ((x * 1e7).round() / 1e7) as usize;
        let is_wide = width / height > columns as f64 / lines as f64;
        let used = |all: usize, own: usize| {
            let padding = all.saturating_sub(own) / 2;
            padding..all - padding
        };
        let (lines, columns) = if is_wide {
            (used(lines, whole(height * (columns as f64 / width))), 0..columns)
        } else {
            (0..lines, used(columns, whole(width * (lines as f64 / height))))
        };
        Self { tiles: parts.columns, side, lines, columns }
    }

    /// Returns the number of rows.
    pub(crate) fn count(&self) -> usize {
        self.side * self.side + self.lines.len() * (self.columns.len() + 1)
    }

    /// Joins the rows of all tiles and of the small copy, `[rows, width]`; `line_end` is the row at
    /// the end of each line, `[width]`.
    pub(crate) fn joined(&self, rows: &[f32], line_end: &[f32]) -> Vec<f32> {
        let (width, tile) = (line_end.len(), self.side * self.side);
        let of = |index: usize| &rows[index * width..][..width];
        let copy = rows.len() / width - tile;
        let mut joined = Vec::with_capacity(self.count() * width);
        joined.extend_from_slice(&rows[copy * width..]);
        for line in self.lines.clone() {
            for column in self.columns.clone() {
                let of_tile = line / self.side * self.tiles + column / self.side;
                joined.extend_from_slice(of(of_tile * tile + line % self.side * self.side + column % self.side));
            }
            joined.extend_from_slice(line_end);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use pictures::PictureSize;

    use super::*;

    #[test]
    fn lines_reach_over_tiles_and_leave_out_padding() {
        let original = PictureSize::new(40, 10);
        let parts = PictureParts { columns: 2, rows: 1, parts: Vec::new(), original };
        let lines = JoinedLines::of(&parts, 2);
        // A line of four rows; the picture is half as high as the tiles, which is one line.
        assert_eq!((lines.lines.clone(), lines.columns.clone()), (0..2, 0..4));
        let rows: Vec<f32> = (0..12).map(|row| row as f32).collect();
        let joined = lines.joined(&rows, &[-1.0]);
        assert_eq!(joined, [8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 4.0, 5.0, -1.0, 2.0, 3.0, 6.0, 7.0, -1.0]);
        assert_eq!(joined.len(), lines.count());
        let lines = JoinedLines::of(&parts, 4);
        assert_eq!(lines.lines, 1..3, "the picture is half as high as the tiles");
    }
}
