//! Readers and writers that hash the bytes that pass through them.

use std::io::{self, Read, Write};

use crate::{Algorithm, Digest, Hasher};

/// Hashes and counts the bytes that are read through it.
///
/// # Examples
///
/// ```
/// use std::io;
/// use lode_content::io::DigestReader;
/// use lode_content::{Algorithm, Digest};
///
/// let mut reader = DigestReader::new(&b"hello"[..], Algorithm::Sha256);
/// io::copy(&mut reader, &mut io::sink())?;
/// assert_eq!(reader.finish(), (Digest::of(b"hello"), 5));
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Debug)]
pub struct DigestReader<R> {
    inner: R,
    hasher: Hasher,
    count: u64,
}

impl<R: Read> DigestReader<R> {
    /// Wraps `inner`; nothing is read yet.
    pub fn new(inner: R, algorithm: Algorithm) -> Self {
        Self { inner, hasher: Hasher::new(algorithm), count: 0 }
    }

    /// The digest and number of the bytes read so far.
    pub fn finish(self) -> (Digest, u64) {
        (self.hasher.finish(), self.count)
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..n]);
        self.count += n as u64;
        Ok(n)
    }
}

/// Hashes and counts the bytes that are written through it: only bytes that `inner` accepted.
#[derive(Debug)]
pub struct DigestWriter<W> {
    inner: W,
    hasher: Hasher,
    count: u64,
}

impl<W: Write> DigestWriter<W> {
    /// Wraps `inner`; nothing is written yet.
    pub fn new(inner: W, algorithm: Algorithm) -> Self {
        Self { inner, hasher: Hasher::new(algorithm), count: 0 }
    }

    /// The inner writer with the digest and number of the bytes it took.
    pub fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hasher.finish(), self.count)
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.count += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that accepts three bytes at a time and fails after eight.
    struct Reluctant(Vec<u8>);

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() >= 8 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let n = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn hashes_what_the_inner_writer_took() {
        let mut writer = DigestWriter::new(Reluctant(Vec::new()), Algorithm::Sha256);
        assert!(writer.write_all(b"0123456789abcdef").is_err());
        let (inner, digest, count) = writer.finish();
        assert_eq!((digest, count), (Digest::of(&inner.0), 9));
    }

    #[test]
    fn reads_through() {
        let mut reader = DigestReader::new(&b"hello"[..], Algorithm::Sha256);
        io::copy(&mut reader, &mut io::sink()).expect("memory");
        assert_eq!(reader.finish(), (Digest::of(b"hello"), 5));
    }
}
