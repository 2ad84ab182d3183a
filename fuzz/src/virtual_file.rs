//! Files of which only the beginning is in memory.

use std::io;
use std::sync::Arc;

use content::Digest;
use import::{NamedFile, ReadAt};

/// A file that begins with given bytes and continues with zeros up to its size. Parsers of headers
/// see files of any size, and the zeros take no memory.
#[derive(Debug)]
pub struct VirtualFile {
    /// The first bytes of the file.
    pub beginning: Vec<u8>,
    /// The length in bytes, at least that of `beginning`.
    pub size: u64,
}

impl VirtualFile {
    /// Returns a file that has exactly these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { beginning: bytes.to_vec(), size: bytes.len() as u64 }
    }

    /// Converts it into a named file of a model.
    pub fn named(self, name: &str) -> NamedFile {
        NamedFile { name: name.to_owned(), source: Arc::new(self) }
    }
}

impl ReadAt for VirtualFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.fill(0);
        let own = usize::try_from(offset).ok().and_then(|offset| self.beginning.get(offset..)).unwrap_or_default();
        let length = own.len().min(buffer.len());
        buffer[..length].copy_from_slice(&own[..length]);
        Ok(())
    }

    fn name(&self) -> String {
        "virtual".to_owned()
    }

    /// Returns the digest of the beginning. Parsers only pass it on.
    fn digest(&self) -> Option<Digest> {
        Some(Digest::of(&self.beginning))
    }
}
