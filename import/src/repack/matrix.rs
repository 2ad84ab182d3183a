//! Matrices in files, read by whole rows in either storage order.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::ReadAt;

/// Number of columns of a transposed matrix that are processed together: their elements fill a
/// cache line.
const TOGETHER: u64 = 16;

/// Matrix in a file.
#[derive(Clone, Debug)]
pub(super) struct SourceMatrix {
    pub(super) file: Arc<dyn ReadAt>,
    /// Offset of the first byte in the file.
    pub(super) offset: u64,
    /// Size of an element in bytes: 1, 2 or 4.
    pub(super) unit: u64,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Whether the file stores the matrix in column-major order.
    pub(super) is_transposed: bool,
}

impl SourceMatrix {
    /// Returns the bytes of some whole rows, one after the other.
    pub(super) fn rows(&self, rows: Range<u64>) -> io::Result<Vec<u8>> {
        if !self.is_transposed {
            let size = self.columns * self.unit;
            return self.read(rows.start * size, (rows.end - rows.start) * size);
        }
        let count = rows.end - rows.start;
        let mut out = vec![0; (count * self.columns * self.unit) as usize];
        let mut column = 0;
        while column < self.columns {
            let lines = TOGETHER.min(self.columns - column);
            let read = self.lines(column..column + lines, &rows)?;
            for row in 0..count {
                let to = ((row * self.columns + column) * self.unit) as usize;
                let place = &mut out[to..][..(lines * self.unit) as usize];
                match self.unit {
                    1 => gather::<1>(&read, count, row, place),
                    2 => gather::<2>(&read, count, row, place),
                    _ => gather::<4>(&read, count, row, place),
                }
            }
            column += lines;
        }
        Ok(out)
    }

    /// Reads the elements of some rows from some columns of a transposed matrix, column by column.
    fn lines(&self, columns: Range<u64>, rows: &Range<u64>) -> io::Result<Vec<u8>> {
        let count = rows.end - rows.start;
        if count == self.rows {
            let line = self.rows * self.unit;
            return self.read(columns.start * line, (columns.end - columns.start) * line);
        }
        let mut all = Vec::with_capacity(((columns.end - columns.start) * count * self.unit) as usize);
        for column in columns {
            all.extend(self.read((column * self.rows + rows.start) * self.unit, count * self.unit)?);
        }
        Ok(all)
    }

    fn read(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, self.offset + offset)?;
        Ok(bytes)
    }
}

/// Collects the elements of one row from columns that have `count` elements each.
fn gather<const UNIT: usize>(lines: &[u8], count: u64, row: u64, out: &mut [u8]) {
    let elements = lines.as_chunks::<UNIT>().0;
    for (line, out) in out.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
        *out = elements[line * count as usize + row as usize];
    }
}
