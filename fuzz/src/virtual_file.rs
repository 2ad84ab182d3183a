//! Files of which only the beginning is in memory.

use std::io;
use std::sync::Arc;

use content::Digest;
use import::{NamedFile, ReadAt};

/// A file that begins with some bytes and goes on with zeros up to its size: parsers of headers see files of any size, and
/// none of it takes memory.
#[derive(Debug)]
pub struct VirtualFile {
    /// What it begins with.
    pub beginning: Vec<u8>,
    /// Its length in bytes, which is not less than that of the beginning.
    pub size: u64,
}

impl VirtualFile {
    /// A file that has these bytes and no others.
    pub fn of(bytes: &[u8]) -> Self {
        Self { beginning: bytes.to_vec(), size: bytes.len() as u64 }
    }

    /// The same as a file of a model.
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

    /// That of the beginning. Parsers only pass it on.
    fn digest(&self) -> Option<Digest> {
        Some(Digest::of(&self.beginning))
    }
}
