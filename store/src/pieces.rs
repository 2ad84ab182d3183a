//! Reading a blob in pieces, so that its size does not matter.

use std::ops::Range;

use crate::Error;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// Reads a range with `read`, which gets a buffer and an offset, and passes each piece to `each`.
pub(crate) fn each_piece(
    range: Range<u64>,
    read: impl Fn(&mut [u8], u64) -> Result<(), Error>,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut buffer = vec![0; PIECE.min(range.end.saturating_sub(range.start)) as usize];
    let mut at = range.start;
    while at < range.end {
        let piece = &mut buffer[..PIECE.min(range.end - at) as usize];
        read(piece, at)?;
        each(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}
