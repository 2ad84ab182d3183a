//! Writing an archive as a stream.

use std::io::{self, Write};

use crate::header::Header;
use crate::{BLOCK, padding};

/// Size in bytes of the zero blocks that end an archive.
pub const END_SIZE: u64 = 2 * BLOCK;

/// Writes members in order: call [`member`](Self::member), write exactly its bytes, and call
/// [`finish`](Self::finish) at the end.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
    /// Bytes of the current member that are not written yet.
    left: u64,
    /// Padding bytes after the current member.
    padding: u64,
}

/// Returns the number of bytes that a member of this path and size occupies, including its headers
/// and padding.
pub fn member_size(path: &str, size: u64) -> u64 {
    let whole = |size: u64| BLOCK + size + padding(size);
    let extended = records(path, size).map_or(0, |records| whole(records.len() as u64));
    extended + whole(size)
}

impl<W: Write> Writer<W> {
    /// Creates a writer; nothing is written yet.
    pub fn new(inner: W) -> Self {
        Self { inner, left: 0, padding: 0 }
    }

    /// Starts a file of `size` bytes.
    pub fn member(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.end_member()?;
        if let Some(records) = records(path, size) {
            self.header("pax", records.len() as u64, b'x')?;
            self.inner.write_all(records.as_bytes())?;
            self.pad(padding(records.len() as u64))?;
        }
        self.header(path, size, b'0')?;
        (self.left, self.padding) = (size, padding(size));
        Ok(())
    }

    /// Writes the end of the archive and returns the inner writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_member()?;
        self.pad(END_SIZE)?;
        self.inner.flush()?;
        Ok(self.inner)
    }

    fn header(&mut self, path: &str, size: u64, kind: u8) -> io::Result<()> {
        self.inner.write_all(&Header { path: path.as_bytes().to_vec(), size, kind }.write())
    }

    fn end_member(&mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other(format!("{} bytes of a member were not written", self.left)));
        }
        let padding = std::mem::take(&mut self.padding);
        self.pad(padding)
    }

    fn pad(&mut self, count: u64) -> io::Result<()> {
        io::copy(&mut io::Read::take(io::repeat(0), count), &mut self.inner).map(drop)
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other("a member has more bytes than were announced"));
        }
        let n = self.inner.write(bytes)?;
        self.left -= n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns the pax records of a member whose path or size does not fit into a header.
fn records(path: &str, size: u64) -> Option<String> {
    if Header::fits(path, size) {
        return None;
    }
    Some(record("path", path) + &record("size", &size.to_string()))
}

/// Encodes `LENGTH key=value\n`; LENGTH counts its own digits too.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() > length {
        length += 1;
    }
    format!("{length} {key}={value}\n")
}
