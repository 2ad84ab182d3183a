//! Reading an untrusted archive as a stream.

use std::io::{self, Read};

use crate::header::HeaderBlock;
use crate::headers::{Entry, Headers, Next};
use crate::{BLOCK, Error, padding};

/// Reads members in the order of the archive. After [`next`](Self::next), `Read` returns the bytes
/// of that member; the next call skips bytes that are left.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    offset: u64,
    headers: Headers,
    /// Bytes of the current member that are not read yet.
    left: u64,
    /// Padding bytes after the current member.
    padding: u64,
}

impl<R: Read> Reader<R> {
    /// Creates a reader of the archive in `inner`.
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, headers: Headers::default(), left: 0, padding: 0 }
    }

    /// Advances to the next member and returns it; `None` at the end of the archive.
    #[expect(clippy::should_implement_trait, reason = "the member's bytes are read from here, so it is no iterator")]
    pub fn next(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            self.pass(self.left.saturating_add(self.padding))?;
            (self.left, self.padding) = (0, 0);
            let Some(block) = self.block()? else { return Ok(None) };
            let next = self.headers.block(&block, self.offset)?;
            self.offset += BLOCK;
            match next {
                Next::End => return Ok(None),
                Next::Skip(size) => (self.left, self.padding) = (size, padding(size)),
                Next::Record(size) => {
                    (self.left, self.padding) = (size, padding(size));
                    let begin = self.offset;
                    let mut record = Vec::with_capacity(size as usize);
                    self.read_to_end(&mut record)?;
                    self.headers.record(&record, begin)?;
                }
                Next::Member(entry, size) => {
                    (self.left, self.padding) = (size, padding(size));
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads the next block; `None` if the archive ends without the zero blocks that should be
    /// there.
    fn block(&mut self) -> Result<Option<HeaderBlock>, Error> {
        let mut block: HeaderBlock = [0; BLOCK as usize];
        let mut filled = 0;
        while filled < block.len() {
            match self.inner.read(&mut block[filled..]) {
                // Some writers omit the zero blocks at the end.
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(self.malformed("it ends within a header")),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(block))
    }

    /// Skips `count` bytes.
    fn pass(&mut self, count: u64) -> Result<(), Error> {
        let passed = io::copy(&mut self.inner.by_ref().take(count), &mut io::sink())?;
        self.offset = self.offset.saturating_add(passed);
        if passed < count {
            return Err(self.malformed(format!("it ends {} bytes too early", count - passed)));
        }
        Ok(())
    }

    fn malformed(&self, reason: impl Into<String>) -> Error {
        Error::Malformed { offset: self.offset, reason: reason.into() }
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buffer[..wanted])?;
        if n == 0 {
            let error = self.malformed(format!("it ends {} bytes too early", self.left));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        self.left -= n as u64;
        self.offset += n as u64;
        Ok(n)
    }
}
