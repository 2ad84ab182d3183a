//! Where the bytes of a source file are.
//!
//! An import only ever asks for bytes at an offset: whether they are on this disk, inside of an archive or at the other
//! end of a connection is not its matter. Reads block; they come from worker threads, several at a time.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use content::Digest;

/// A file that can be read at any offset, by any number of threads.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Length in bytes. Means nothing before a read has succeeded; one of no bytes will do.
    fn size(&self) -> u64;

    /// Fills the buffer with the bytes at `offset`. Bytes after the end are an error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// What errors call it: a path or a URL.
    fn name(&self) -> String;

    /// What names exactly these bytes wherever they are met again: a digest, or a URL with its entity tag. `None` where
    /// they may be others the next time.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The digest of all its bytes, where it is known without reading them.
    fn digest(&self) -> Option<Digest> {
        None
    }
}

/// A file of a model: the name it has there, and where its bytes are.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// Relative to the model's folder, with slashes.
    pub name: String,
    /// Where the bytes are.
    pub source: Arc<dyn ReadAt>,
}

impl NamedFile {
    /// A file on this machine.
    pub fn local(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), source: Arc::new(LocalFile::new(path)) }
    }
}

/// A file on this machine. It is opened with the first read and stays open: what was found then is what is read.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    opened: OnceLock<Result<(File, u64), Refused>>,
    digest: Option<Digest>,
    /// What errors call it where that is not its path.
    called: Option<String>,
}

/// An error that can be told more than once.
#[derive(Debug)]
struct Refused {
    kind: io::ErrorKind,
    reason: String,
}

impl LocalFile {
    /// The file at `path`; whether there is one shows with the first read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), opened: OnceLock::new(), digest: None, called: None }
    }

    /// A file that is open already; `path` is what errors call it.
    ///
    /// # Errors
    /// It is a folder, a pipe, a device, or cannot be looked at.
    pub fn opened(path: impl Into<PathBuf>, file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        Ok(Self { path: path.into(), opened: OnceLock::from(Ok((file, metadata.len()))), digest: None, called: None })
    }

    /// With the digest of its bytes: those of a blob, which never change.
    pub fn with_digest(self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self }
    }

    /// Under the name that its sender gave it: errors do not tell clients where the store is.
    #[must_use]
    pub fn called(self, name: impl Into<String>) -> Self {
        Self { called: Some(name.into()), ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> io::Result<&(File, u64)> {
        let open = || {
            let refused = |e: io::Error| Refused { kind: e.kind(), reason: e.to_string() };
            // Looked at before it is opened: opening a pipe would wait for a writer.
            let found = std::fs::metadata(&self.path).map_err(refused)?;
            if !found.is_file() {
                return Err(Refused { kind: io::ErrorKind::InvalidInput, reason: "it is not a file".to_owned() });
            }
            let file = File::open(&self.path).map_err(refused)?;
            let size = file.metadata().map_err(refused)?.len();
            Ok((file, size))
        };
        let opened = self.opened.get_or_init(open).as_ref();
        opened.map_err(|refused| io::Error::new(refused.kind, refused.reason.clone()))
    }
}

impl ReadAt for LocalFile {
    fn size(&self) -> u64 {
        self.file().map_or(0, |(_, size)| *size)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file()?.0.read_exact_at(buffer, offset)
    }

    fn name(&self) -> String {
        self.called.clone().unwrap_or_else(|| self.path.display().to_string())
    }

    fn digest(&self) -> Option<Digest> {
        self.digest
    }
}

/// A part of another source: a member of an archive.
#[derive(Debug)]
pub struct Slice {
    inner: Arc<dyn ReadAt>,
    name: String,
    offset: u64,
    size: u64,
    /// What its bytes hash to, where that was found out.
    digest: Option<Digest>,
}

impl Slice {
    /// The `size` bytes at `offset` of `inner`, called `name` there.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where `inner` does not have them.
    pub fn new(inner: Arc<dyn ReadAt>, name: &str, offset: u64, size: u64) -> io::Result<Self> {
        inner.read_exact_at(&mut [], 0)?;
        if offset.checked_add(size).is_none_or(|end| end > inner.size()) {
            let (outer, has) = (inner.name(), inner.size());
            let reason =
                format!("`{name}` would be {size} bytes at {offset} of `{outer}`, which has {has}; it was cut");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(Self { inner, name: name.to_owned(), offset, size, digest: None })
    }

    /// What it is called in the other source.
    pub(crate) fn member_name(&self) -> &str {
        &self.name
    }

    /// Its place in the other source.
    pub(crate) fn place(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }

    /// With the digest of its bytes, which then is its identity.
    pub(crate) fn with_digest(self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self }
    }
}

impl ReadAt for Slice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inner.read_exact_at(buffer, self.offset + offset)
    }

    fn name(&self) -> String {
        format!("{} in {}", self.name, self.inner.name())
    }

    fn identity(&self) -> Option<String> {
        // Not the place in the other source: that names the bytes only where all of it was looked at.
        self.digest.map(|digest| digest.to_string())
    }

    fn digest(&self) -> Option<Digest> {
        self.digest
    }
}

/// Reads what a header in memory has of a file that begins with it and has `size` bytes in all. Gives the rest of the buffer, whose
/// bytes lie behind the header.
///
/// # Errors
/// The file ends before the buffer does.
pub(crate) fn read_header_part<'b>(
    header: &[u8],
    size: u64,
    buffer: &'b mut [u8],
    offset: u64,
) -> io::Result<&'b mut [u8]> {
    let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= size);
    end.ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = header.get(offset.min(header.len() as u64) as usize..).unwrap_or_default();
    let count = head.len().min(buffer.len());
    let (first, rest) = buffer.split_at_mut(count);
    first.copy_from_slice(&head[..count]);
    Ok(rest)
}

/// A document that was made of another and is short.
#[derive(Debug)]
pub(crate) struct Document {
    /// What errors call it.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl ReadAt for Document {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let part = self.bytes.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Bytes in memory, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct InMemory(pub(crate) Vec<u8>);

#[cfg(test)]
impl ReadAt for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let part = self.0.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn name(&self) -> String {
        "bytes".to_owned()
    }

    fn digest(&self) -> Option<Digest> {
        Some(Digest::of(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_where_it_ends() {
        let folder = std::env::temp_dir().join(format!("lode-slice-{}", std::process::id()));
        std::fs::write(&folder, b"0123456789").expect("a file");
        let whole: Arc<dyn ReadAt> = Arc::new(LocalFile::new(&folder));
        let slice = Slice::new(Arc::clone(&whole), "part", 2, 5).expect("a part");
        let mut buffer = [0; 3];
        slice.read_exact_at(&mut buffer, 2).expect("inside");
        assert_eq!((&buffer, slice.size()), (b"456", 5));
        assert!(slice.read_exact_at(&mut buffer, 3).is_err(), "it read into what follows");
        assert!(slice.read_exact_at(&mut buffer, u64::MAX).is_err());
        assert!(Slice::new(Arc::clone(&whole), "part", 6, 5).is_err());
        assert!(Slice::new(whole, "part", 1, u64::MAX).is_err());
        std::fs::remove_file(&folder).expect("the file goes");
    }

    #[test]
    fn a_missing_file_says_so_each_time() {
        let file = LocalFile::new("/nonexistent/file");
        for _ in 0..2 {
            let error = file.read_exact_at(&mut [], 0).expect_err("there is none");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
        assert!(LocalFile::new("/").read_exact_at(&mut [], 0).is_err(), "a folder is no file");
    }
}
