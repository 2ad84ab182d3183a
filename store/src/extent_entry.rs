//! The files of entries of blobs that lie in other files.
//!
//! ```text
//! lode extents 1
//! file DEVICE INODE SIZE MODIFIED CHANGED PATH    decimal; times in nanoseconds since 1970
//! extent FILE OFFSET SIZE                         FILE counts the files above, from 0
//! header SIZE
//!                                                 SIZE bytes
//! ```
//! The blob is the header, then the extents in their order. A relative path is a file in the folder
//! of the store.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::source_file::{Extent, FileIdentity, SourceFile};

/// Maximum size of an entry in bytes: the header of the largest group of experts, and its extents.
pub(crate) const MAX_ENTRY: u64 = 64 << 20;
const TITLE: &str = "lode extents 1";

/// A blob that lies in other files.
#[derive(Clone, Debug)]
pub(crate) struct ExtentEntry {
    /// The first bytes of the blob.
    pub(crate) header: Vec<u8>,
    /// The files of the extents, each once.
    pub(crate) files: Vec<Arc<SourceFile>>,
    /// The bytes after the header.
    pub(crate) extents: Vec<EntryExtent>,
}

/// A part of a blob, in a file of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryExtent {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl ExtentEntry {
    pub(crate) fn new(header: &[u8], extents: &[Extent]) -> Self {
        let mut files: Vec<Arc<SourceFile>> = Vec::new();
        let place = |extent: &Extent| {
            let known = files.iter().position(|file| **file == *extent.file);
            let file = known.unwrap_or_else(|| {
                files.push(Arc::clone(&extent.file));
                files.len() - 1
            });
            EntryExtent { file, offset: extent.offset, size: extent.size }
        };
        let extents = extents.iter().map(place).collect();
        Self { header: header.to_vec(), files, extents }
    }

    /// Length of the blob in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.header.len() as u64 + self.extents.iter().map(|extent| extent.size).sum::<u64>()
    }

    pub(crate) fn to_bytes(&self, home: &Path) -> Vec<u8> {
        let mut text = format!("{TITLE}\n");
        for file in &self.files {
            let FileIdentity { device, inode, size, modified, changed } = file.identity();
            let path = file.path().strip_prefix(home).unwrap_or(file.path()).display();
            let _ = writeln!(text, "file {device} {inode} {size} {modified} {changed} {path}");
        }
        for EntryExtent { file, offset, size } in &self.extents {
            let _ = writeln!(text, "extent {file} {offset} {size}");
        }
        let _ = writeln!(text, "header {}", self.header.len());
        [text.into_bytes(), self.header.clone()].concat()
    }

    /// Parses an entry. The error says which line is wrong.
    pub(crate) fn parse(bytes: &[u8], home: &Path) -> Result<Self, String> {
        let mut rest = bytes;
        let title = line(&mut rest)?;
        if title != TITLE {
            return Err(format!("it begins with `{title}`, expected `{TITLE}`"));
        }
        let (mut files, mut extents) = (Vec::new(), Vec::new());
        loop {
            let text = line(&mut rest)?;
            let wrong = || format!("its line `{text}` cannot be read");
            let (kind, fields) = text.split_once(' ').ok_or_else(wrong)?;
            match kind {
                "file" => files.push(Arc::new(file(fields, home).ok_or_else(wrong)?)),
                "extent" => extents.push(extent(fields, &files).ok_or_else(wrong)?),
                "header" if fields.parse() == Ok(rest.len()) => break,
                _ => return Err(wrong()),
            }
        }
        let sizes = extents.iter().try_fold(rest.len() as u64, |sum, extent| sum.checked_add(extent.size));
        sizes.ok_or("the sizes of its extents overflow")?;
        Ok(Self { header: rest.to_vec(), files, extents })
    }
}

/// Takes the first line.
fn line<'a>(rest: &mut &'a [u8]) -> Result<&'a str, String> {
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or("it has no header")?;
    let text = std::str::from_utf8(&rest[..end]).map_err(|_| "one of its lines is not text")?;
    *rest = &rest[end + 1..];
    Ok(text)
}

fn file(fields: &str, home: &Path) -> Option<SourceFile> {
    let mut fields = fields.splitn(6, ' ');
    let mut next = || fields.next();
    let (device, inode, size) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
    let (modified, changed) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let path: PathBuf = next().filter(|path| !path.is_empty())?.into();
    Some(SourceFile::new(home.join(path), FileIdentity { device, inode, size, modified, changed }))
}

/// Reads an extent, and checks that it ends inside of its file.
fn extent(fields: &str, files: &[Arc<SourceFile>]) -> Option<EntryExtent> {
    let numbers: Vec<u64> = fields.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [file, offset, size] = numbers[..] else { return None };
    let file = usize::try_from(file).ok()?;
    let whole = files.get(file)?.identity().size;
    offset.checked_add(size).filter(|end| *end <= whole)?;
    Some(EntryExtent { file, offset, size })
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    fn source(path: &str, size: u64) -> Arc<SourceFile> {
        let identity = FileIdentity { device: 7, inode: 8, size, modified: -5, changed: 1_800_000_000_123_456_789 };
        Arc::new(SourceFile::new(path.into(), identity))
    }

    #[test]
    fn entries_are_read_as_written() {
        let (here, there) = (source("/home/s/adopted/ab", 90), source("/m/a model\twith spaces.gguf", 50));
        let extent = |file: &Arc<SourceFile>, offset, size| Extent { file: Arc::clone(file), offset, size };
        let extents = [extent(&there, 32, 18), extent(&here, 0, 90), extent(&there, 0, 0)];
        let entry = ExtentEntry::new(b"head\ner", &extents);
        let bytes = entry.to_bytes(Path::new("/home/s"));
        assert!(String::from_utf8_lossy(&bytes).contains(" adopted/ab\n"), "a path in the store is relative");
        let again = ExtentEntry::parse(&bytes, Path::new("/elsewhere")).expect("an entry");
        assert_eq!((again.header.as_slice(), again.size()), (&b"head\ner"[..], 7 + 18 + 90));
        assert_eq!(again.extents, entry.extents);
        assert_eq!(again.files[0], there);
        assert_eq!(again.files[1].path(), Path::new("/elsewhere/adopted/ab"));
    }

    #[test]
    fn damaged_entries_are_refused() {
        let entry = ExtentEntry::new(b"h", &[Extent { file: source("/m", 50), offset: 10, size: 40 }]);
        let good = String::from_utf8(entry.to_bytes(Path::new("/home"))).expect("text");
        let parse = |text: &str| ExtentEntry::parse(text.as_bytes(), Path::new("/home"));
        assert!(parse(&good).is_ok());
        for (from, to) in [
            ("lode extents 1", "lode extents 2"),
            ("extent 0 10 40", "extent 0 11 40"),
            ("extent 0 10 40", "extent 1 10 40"),
            ("extent 0 10 40", "extent 0 18446744073709551615 40"),
            ("extent 0 10 40", "extent 0 10"),
            ("extent 0 10 40", "extents 0 10 40"),
            ("header 1", "header 2"),
            ("header 1\nh", ""),
            ("file 7", "file x"),
            (" /m", " "),
        ] {
            let damaged = good.replace(from, to);
            assert!(parse(&damaged).is_err(), "{damaged}");
        }
        for end in 0..good.len() {
            assert!(parse(&good[..end]).is_err(), "an entry of {end} bytes was accepted");
        }
    }
}
