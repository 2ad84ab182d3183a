//! Reading a blob in pieces, so that its size does not matter.

use std::io;
use std::ops::Range;
use std::path::Path;

use content::{Algorithm, Digest, Hasher};

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

/// Hashes `size` bytes, which `read` reads. `on_bytes` is called with the number of bytes since its
/// last call, and returns whether to continue; `path` is named if it does not.
pub(crate) fn hash(
    size: u64,
    algorithm: Algorithm,
    path: &Path,
    read: impl Fn(&mut [u8], u64) -> Result<(), Error>,
    on_bytes: &mut dyn FnMut(u64) -> bool,
) -> Result<Digest, Error> {
    let mut hasher = Hasher::new(algorithm);
    each_piece(0..size, read, |piece| {
        hasher.update(piece);
        if on_bytes(piece.len() as u64) {
            return Ok(());
        }
        Err(Error::io("go on reading", path, io::ErrorKind::Interrupted))
    })?;
    Ok(hasher.finish())
}
