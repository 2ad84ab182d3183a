//! Writing an archive.

use std::io::{self, Write};

use crate::header::Header;
use crate::{BLOCK, padding};

/// Bytes that end an archive.
pub const END_SIZE: u64 = 2 * BLOCK;

/// Writes members one after the other: [`member`](Self::member), then exactly its bytes, and at last
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
    /// Bytes of the current member that are still to come.
    left: u64,
    /// Bytes that follow them.
    padding: u64,
}

/// Bytes that a member of that path and size takes, its header included.
pub fn member_size(path: &str, size: u64) -> u64 {
    let whole = |size: u64| BLOCK + size + padding(size);
    let extended = records(path, size).map_or(0, |records| whole(records.len() as u64));
    extended + whole(size)
}

impl<W: Write> Writer<W> {
    /// Begins an archive; nothing is written yet.
    pub fn new(inner: W) -> Self {
        Self { inner, left: 0, padding: 0 }
    }

    /// Begins a file.
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

    /// Ends the archive.
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

/// The pax records of a member whose path or size a header cannot hold.
fn records(path: &str, size: u64) -> Option<String> {
    if Header::fits(path, size) {
        return None;
    }
    Some(record("path", path) + &record("size", &size.to_string()))
}

/// `LENGTH key=value\n`, where the length counts itself.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() > length {
        length += 1;
    }
    format!("{length} {key}={value}\n")
}
