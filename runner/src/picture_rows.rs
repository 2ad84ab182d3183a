//! Rows of pictures in sequences: the ids that stand for them, and the rows that a tower computed.
//!
//! A row of a picture has an id beyond all vocabularies. Equal ids stand for the same row of the
//! same picture, so the prefixes of sequences are compared as if there were tokens only.

use std::sync::Arc;

use architectures::PictureInput;
use pictures::{Picture, PictureParts};

use crate::joined_lines::JoinedLines;

/// Ids from here on stand for rows of pictures.
pub(crate) const FIRST_ROW: u32 = 1 << 31;

/// True if the id stands for a row of a picture.
pub(crate) fn is_row(id: u32) -> bool {
    id >= FIRST_ROW
}

/// Largest number of tokens between two lines or tiles of a picture. Idefics 3 has places of tiles
/// as ordinary text.
const BETWEEN_LINES: usize = 32;

/// True if a picture goes on across the boundary before index `at`: the rows next to it, on both
/// sides, have consecutive ids. There may be a few tokens between two lines or tiles of a picture.
/// Pictures that follow each other have no consecutive ids.
fn cuts_picture(ids: &[u32], at: usize) -> bool {
    let (before, behind) = ids.split_at(at.min(ids.len()));
    let row = |id: &&u32| is_row(**id);
    let last = before.iter().rev().take(BETWEEN_LINES + 1).find(row);
    let next = behind.iter().take(BETWEEN_LINES + 1).find(row);
    last.zip(next).is_some_and(|(last, next)| *next == last.wrapping_add(1))
}

/// Returns the index where the picture begins that the boundary before index `at` cuts; `at` if it
/// cuts none.
pub(crate) fn begin_of_picture(ids: &[u32], mut at: usize) -> usize {
    while cuts_picture(ids, at) {
        at -= 1;
    }
    at
}

/// Returns the index where the picture ends that the boundary before index `at` cuts; `at` if it
/// cuts none.
pub(crate) fn end_of_cut_picture(ids: &[u32], mut at: usize) -> usize {
    while cuts_picture(ids, at) {
        at += 1;
    }
    at
}

/// The ids of a picture, and the arrangement of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PictureGrid {
    /// Id of the first row.
    pub(crate) first: u32,
    /// Number of rows in a line of the picture, or of each of its tiles.
    pub(crate) columns: usize,
    /// Number of lines of the picture, or of each of its tiles.
    pub(crate) lines: usize,
    /// Tiles; `None` if the picture is not cut.
    pub(crate) tiles: Option<TileGrid>,
}

/// The tiles of a picture. The rows of a tile follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileGrid {
    /// Number of tiles in a row of the picture.
    pub(crate) columns: usize,
    /// Number of rows of tiles.
    pub(crate) rows: usize,
    /// Rows in a line, and lines, of the small copy of the picture behind the tiles.
    pub(crate) copy: Option<[usize; 2]>,
}

/// A picture that a tower has computed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EncodedPicture {
    /// In place of embeddings, `[rows, hidden]`.
    pub(crate) rows: Vec<f32>,
    /// Added to the stream behind the first layers of the decoder, `[rows, hidden]` each.
    pub(crate) deep: Vec<Vec<f32>>,
}

/// The rows of a picture in a sequence.
#[derive(Clone, Debug)]
pub(crate) struct PictureRows {
    pub(crate) grid: PictureGrid,
    pub(crate) encoded: Arc<EncodedPicture>,
}

impl PictureGrid {
    /// Returns the arrangement of a picture that is not cut.
    pub(crate) fn whole(first: u32, columns: usize, lines: usize) -> Self {
        Self { first, columns, lines, tiles: None }
    }

    /// Returns the arrangement of the rows of a picture's parts, with the first of all ids. Joined
    /// tiles are one line.
    pub(crate) fn of(parts: &PictureParts, input: &PictureInput, joins_tiles: bool) -> Self {
        let side = (input.patch * input.block) as usize;
        if joins_tiles {
            return Self::whole(FIRST_ROW, JoinedLines::of(parts, parts.part_width() / side).count(), 1);
        }
        let sides = |part: &Picture| [part.size().width / side, part.size().height / side];
        let [columns, lines] = parts.parts.first().map(sides).unwrap_or_default();
        let tiles = (parts.parts.len() > 1).then(|| TileGrid {
            columns: parts.columns,
            rows: parts.rows,
            copy: parts.parts.get(parts.columns * parts.rows).map(sides),
        });
        Self { tiles, ..Self::whole(FIRST_ROW, columns, lines) }
    }

    /// Returns the number of rows.
    pub(crate) fn count(self) -> usize {
        let part = self.columns * self.lines;
        self.tiles.map_or(part, |tiles| {
            part * tiles.columns * tiles.rows + tiles.copy.map_or(0, |[columns, lines]| columns * lines)
        })
    }

    /// Returns the ids of all rows.
    pub(crate) fn ids(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count() as u32
    }

    /// Returns the index of the row that an id stands for, if it is a row of this picture.
    pub(crate) fn index(self, id: u32) -> Option<usize> {
        self.ids().contains(&id).then(|| (id - self.first) as usize)
    }

    /// Returns how many positions fewer than rows the picture takes, in a decoder whose tokens have
    /// several positions: it is as long as its longer side. Such models have no tiles.
    pub(crate) fn saved(self) -> usize {
        self.count() - self.columns.max(self.lines)
    }
}

impl EncodedPicture {
    /// Appends the rows of the next part of the picture.
    pub(crate) fn append(&mut self, part: &Self) {
        self.rows.extend_from_slice(&part.rows);
        self.deep.resize(part.deep.len(), Vec::new());
        self.deep.iter_mut().zip(&part.deep).for_each(|(own, part)| own.extend_from_slice(part));
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self.rows.len() + self.deep.iter().map(Vec::len).sum::<usize>();
        numbers * size_of::<f32>()
    }
}

/// Returns the picture, and the index of its row that an id stands for.
pub(crate) fn find(pictures: &[PictureRows], id: u32) -> Option<(&PictureRows, usize)> {
    pictures.iter().find_map(|picture| Some((picture, picture.grid.index(id)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_move_to_the_ends_of_pictures() {
        let ids = [7, FIRST_ROW, FIRST_ROW + 1, FIRST_ROW + 3, 8, 9];
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|at| begin_of_picture(&ids, at)), [0, 1, 1, 3, 4, 5, 6]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|at| end_of_cut_picture(&ids, at)), [0, 1, 3, 3, 4, 5, 6]);
        let lines = [7, FIRST_ROW, FIRST_ROW + 1, 5, FIRST_ROW + 2, FIRST_ROW + 3, 6];
        assert_eq!([1, 2, 3, 4, 5, 6].map(|at| begin_of_picture(&lines, at)), [1, 1, 1, 1, 1, 6]);
        assert_eq!([1, 2, 3, 4, 5, 6].map(|at| end_of_cut_picture(&lines, at)), [1, 6, 6, 6, 6, 6]);
    }

    #[test]
    fn a_picture_takes_the_positions_of_its_longer_side() {
        let grid = PictureGrid::whole(FIRST_ROW + 4, 3, 2);
        assert_eq!((grid.count(), grid.saved()), (6, 3));
        assert_eq!([3, 4, 9, 10].map(|id| grid.index(FIRST_ROW + id)), [None, Some(0), Some(5), None]);
    }

    #[test]
    fn a_picture_has_the_rows_of_its_tiles_and_of_its_copy() {
        let grid = |copy| {
            let tiles = Some(TileGrid { columns: 2, rows: 3, copy });
            PictureGrid { tiles, ..PictureGrid::whole(FIRST_ROW, 4, 5) }
        };
        assert_eq!((grid(None).count(), grid(Some([2, 3])).count()), (120, 126));
    }
}
