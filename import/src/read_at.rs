//! Random access to the bytes of a source file.
//!
//! An import reads bytes at offsets only, so the bytes may be on a local disk, inside of an
//! archive, or on a server. Reads block; worker threads call them concurrently.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use content::Digest;

/// File that any number of threads can read at any offset.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Returns the length in bytes. The value is valid only after a read has succeeded; an empty
    /// read suffices.
    fn size(&self) -> u64;

    /// Fills the buffer with the bytes at `offset`. Reading beyond the end is an error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the name for error messages: a path or a URL.
    fn name(&self) -> String;

    /// Returns an identifier of exactly these bytes: a digest, or a URL with its entity tag. `None`
    /// if the bytes may differ at the next read.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Returns the digest of all bytes, if it is known without reading them.
    fn digest(&self) -> Option<Digest> {
        None
    }

    /// Returns the open local file that has these bytes; `None` if they are elsewhere, or made from
    /// other bytes. Valid only after a read has succeeded.
    fn local(&self) -> Option<LocalPart<'_>> {
        None
    }
}

/// The place of bytes in a local file.
#[derive(Clone, Copy, Debug)]
pub struct LocalPart<'a> {
    /// Path of the file.
    pub path: &'a Path,
    /// The open file.
    pub file: &'a File,
    /// Offset of the first byte.
    pub offset: u64,
}

/// File of a model: its name in the model and its source.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// Path relative to the model's folder, with slashes.
    pub name: String,
    /// Source of the bytes.
    pub source: Arc<dyn ReadAt>,
}

impl NamedFile {
    /// Creates an entry for a local file.
    pub fn local(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), source: Arc::new(LocalFile::new(path)) }
    }
}

/// Local file. The first read opens it and it stays open, so later reads see the same file even if
/// the path is replaced.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    opened: OnceLock<Result<(File, u64), SharedIoError>>,
}

/// Copy of an I/O error that can be returned several times.
#[derive(Debug)]
struct SharedIoError {
    kind: io::ErrorKind,
    reason: String,
}

impl LocalFile {
    /// Creates a source for the file at `path`; a missing file is reported by the first read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), opened: OnceLock::new() }
    }

    /// Creates a source for a file that is already open; `path` is its name in error messages.
    ///
    /// # Errors
    /// The file is a folder, a pipe or a device, or its metadata cannot be read.
    pub fn opened(path: impl Into<PathBuf>, file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        Ok(Self { path: path.into(), opened: OnceLock::from(Ok((file, metadata.len()))) })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> io::Result<&(File, u64)> {
        let open = || {
            let refused = |e: io::Error| SharedIoError { kind: e.kind(), reason: e.to_string() };
            // The type is checked before opening, because opening a pipe would wait for a writer.
            let found = std::fs::metadata(&self.path).map_err(refused)?;
            if !found.is_file() {
                return Err(SharedIoError { kind: io::ErrorKind::InvalidInput, reason: "it is not a file".to_owned() });
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
        self.path.display().to_string()
    }

    fn local(&self) -> Option<LocalPart<'_>> {
        let (file, _) = self.file().ok()?;
        Some(LocalPart { path: &self.path, file, offset: 0 })
    }
}

/// Range of another source, such as a member of an archive.
#[derive(Debug)]
pub struct Slice {
    inner: Arc<dyn ReadAt>,
    name: String,
    offset: u64,
    size: u64,
    /// Digest of the bytes, if it was computed.
    digest: Option<Digest>,
}

impl Slice {
    /// Creates a view of the `size` bytes at `offset` of `inner`, where they are named `name`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if `inner` is shorter.
    pub fn new(inner: Arc<dyn ReadAt>, name: &str, offset: u64, size: u64) -> io::Result<Self> {
        inner.read_exact_at(&mut [], 0)?;
        if offset.checked_add(size).is_none_or(|end| end > inner.size()) {
            let (outer, has) = (inner.name(), inner.size());
            let reason = format!(
                "`{name}` needs {size} bytes at offset {offset} of `{outer}`, which has {has} bytes; the file is truncated"
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(Self { inner, name: name.to_owned(), offset, size, digest: None })
    }

    /// Returns the name in the other source.
    pub(crate) fn member_name(&self) -> &str {
        &self.name
    }

    /// Returns the range in the other source.
    pub(crate) fn place(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }

    /// Sets the digest of the bytes, which becomes the identity.
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
        // The range in the other source is not an identity: it identifies the bytes only if the
        // whole source was verified.
        self.digest.map(|digest| digest.to_string())
    }

    fn digest(&self) -> Option<Digest> {
        self.digest
    }

    fn local(&self) -> Option<LocalPart<'_>> {
        let outer = self.inner.local()?;
        Some(LocalPart { offset: outer.offset.checked_add(self.offset)?, ..outer })
    }
}

/// Copies the part of a header in memory that a read at `offset` covers. The file starts with the
/// header and has `size` bytes in total. Returns the rest of the buffer, whose bytes are behind the
/// header.
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

/// Short document in memory that was generated from another document.
#[derive(Debug)]
pub(crate) struct GeneratedDocument {
    /// Name for error messages.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl ReadAt for GeneratedDocument {
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
