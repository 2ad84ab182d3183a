//! The log of the calls that changed a folder, as the shim writes it.
//!
//! A record is a line of fields separated by tabs. Paths are relative to the recorded folder, which
//! is `.`. In paths and marks, bytes below 0x21, 0x7f and `%` are written as `%XX`. Numbers are
//! decimal, modes octal.
//!
//! ```text
//! C <path> <inode>             a file was created
//! M <path> <inode>             a folder was created
//! W <inode> <offset> <length>  a write; the bytes and a line feed follow
//! T <inode> <length>           a file was truncated or extended
//! S <inode>                    a file was synced
//! D <inode> <path>             a folder was synced
//! R <from> <to> <inode>        a rename that replaces <to>
//! L <from> <to> <inode>        a hard link was created
//! U <path> <inode>             a name was removed
//! X <path> <inode>             a folder was removed
//! P <inode> <mode>             the mode was set
//! N <text>                     a mark of the test: an acknowledged state
//! ```

mod tests;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// One call, or a mark. Paths are relative; the recorded folder itself is the empty path. An inode
/// number refers to an object from the record that created it until the next record that creates
/// one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Create { path: PathBuf, inode: u64 },
    MakeFolder { path: PathBuf, inode: u64 },
    Write { inode: u64, offset: u64, bytes: Arc<[u8]> },
    Resize { inode: u64, length: u64 },
    SyncFile { inode: u64 },
    SyncFolder { inode: u64, path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, inode: u64 },
    Link { from: PathBuf, to: PathBuf, inode: u64 },
    Unlink { path: PathBuf, inode: u64 },
    RemoveFolder { path: PathBuf, inode: u64 },
    SetMode { inode: u64, mode: u32 },
    Mark(String),
}

/// The reason why a log could not be read.
#[derive(Debug)]
pub(super) enum LogError {
    Read {
        path: PathBuf,
        source: io::Error,
    },
    /// The record at this byte offset is invalid or truncated.
    Malformed {
        offset: usize,
        reason: String,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, .. } => write!(f, "cannot read the log `{}`", path.display()),
            Self::Malformed { offset, reason } => write!(f, "the log's record at byte {offset}: {reason}"),
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Malformed { .. } => None,
        }
    }
}

/// Describes the call without the written bytes.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, inode } => write!(f, "create `{}` as inode {inode}", path.display()),
            Self::MakeFolder { path, inode } => write!(f, "make the folder `{}` as inode {inode}", path.display()),
            Self::Write { inode, offset, bytes } => {
                write!(f, "write {} bytes at {offset} of inode {inode}", bytes.len())
            }
            Self::Resize { inode, length } => write!(f, "resize inode {inode} to {length} bytes"),
            Self::SyncFile { inode } => write!(f, "sync inode {inode}"),
            Self::SyncFolder { inode, path } => write!(f, "sync the folder `{}`, inode {inode}", path.display()),
            Self::Rename { from, to, inode } => {
                write!(f, "rename `{}` to `{}`, inode {inode}", from.display(), to.display())
            }
            Self::Link { from, to, inode } => {
                write!(f, "link `{}` as `{}`, inode {inode}", from.display(), to.display())
            }
            Self::Unlink { path, inode } => write!(f, "unlink `{}`, inode {inode}", path.display()),
            Self::RemoveFolder { path, inode } => write!(f, "remove the folder `{}`, inode {inode}", path.display()),
            Self::SetMode { inode, mode } => write!(f, "set the mode of inode {inode} to {mode:o}"),
            Self::Mark(text) => write!(f, "mark `{text}`"),
        }
    }
}

/// Reads a whole log.
pub(super) fn read(path: &Path) -> Result<Vec<Record>, LogError> {
    let bytes = fs::read(path).map_err(|source| LogError::Read { path: path.to_owned(), source })?;
    parse(&bytes)
}

/// Parses the records of a log. Returns [`LogError::Malformed`] for an invalid or truncated record.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Record>, LogError> {
    let mut rest = Rest { bytes };
    let mut records = Vec::new();
    while !rest.bytes.is_empty() {
        let offset = bytes.len() - rest.bytes.len();
        records.push(rest.record().map_err(|reason| LogError::Malformed { offset, reason })?);
    }
    Ok(records)
}

/// Returns the numbers of records after which a power cut is tried: after each change of a name,
/// each sync and each mark, and at the end of each run of content changes. [`Loss::Random`] already
/// covers the moments within a run.
///
/// [`Loss::Random`]: super::loss::Loss::Random
pub(super) fn boundaries(records: &[Record]) -> Vec<usize> {
    let changes_content = |record: &Record| matches!(record, Record::Write { .. } | Record::Resize { .. });
    let mut counts = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let next_goes_on = records.get(index + 1).is_some_and(changes_content);
        let is_within_run = changes_content(record) && next_goes_on;
        if !is_within_run && !matches!(record, Record::SetMode { .. }) {
            counts.push(index + 1);
        }
    }
    counts
}

/// The unread part of a log.
struct Rest<'a> {
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    fn record(&mut self) -> Result<Record, String> {
        let header = self.line()?;
        let mut fields = header.split(|byte| *byte == b'\t');
        let kind = fields.next().unwrap_or_default();
        let fields: Vec<&[u8]> = fields.collect();
        Ok(match (kind, fields.as_slice()) {
            (b"C", [name, inode]) => Record::Create { path: path(name)?, inode: number(inode)? },
            (b"M", [name, inode]) => Record::MakeFolder { path: path(name)?, inode: number(inode)? },
            (b"W", [inode, offset, length]) => {
                let (inode, offset, length) = (number(inode)?, number(offset)?, number(length)?);
                Record::Write { inode, offset, bytes: self.data(length)?.into() }
            }
            (b"T", [inode, length]) => Record::Resize { inode: number(inode)?, length: number(length)? },
            (b"S", [inode]) => Record::SyncFile { inode: number(inode)? },
            (b"D", [inode, name]) => Record::SyncFolder { inode: number(inode)?, path: path(name)? },
            (b"R", [from, to, inode]) => Record::Rename { from: path(from)?, to: path(to)?, inode: number(inode)? },
            (b"L", [from, to, inode]) => Record::Link { from: path(from)?, to: path(to)?, inode: number(inode)? },
            (b"U", [name, inode]) => Record::Unlink { path: path(name)?, inode: number(inode)? },
            (b"X", [name, inode]) => Record::RemoveFolder { path: path(name)?, inode: number(inode)? },
            (b"P", [inode, mode]) => Record::SetMode { inode: number(inode)?, mode: octal(mode)? },
            (b"N", [text]) => Record::Mark(String::from_utf8(decode(text)?).map_err(|error| error.to_string())?),
            _ => return Err(format!("`{}` is not a record of a known kind with its fields", header.escape_ascii())),
        })
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or("its line has no end, the log is cut off")?;
        let line = &self.bytes[..end];
        self.bytes = &self.bytes[end + 1..];
        Ok(line)
    }

    /// Returns the bytes of a write, without the line feed after them.
    fn data(&mut self, length: u64) -> Result<&'a [u8], String> {
        let there = self.bytes.len();
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match self.bytes.get(length) {
            None => Err(format!("{length} bytes and a line feed were to follow, {there} are left, the log is cut off")),
            Some(b'\n') => {
                let data = &self.bytes[..length];
                self.bytes = &self.bytes[length + 1..];
                Ok(data)
            }
            Some(_) => Err(format!("no line feed follows the {length} bytes that were written")),
        }
    }
}

fn number(field: &[u8]) -> Result<u64, String> {
    let number = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("`{}` is not a number", field.escape_ascii()))
}

fn octal(field: &[u8]) -> Result<u32, String> {
    let number = std::str::from_utf8(field).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
    let mode = number.filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("`{}` is not an octal mode", field.escape_ascii()))
}

fn path(field: &[u8]) -> Result<PathBuf, String> {
    let written = PathBuf::from(OsString::from_vec(decode(field)?));
    let mut path = PathBuf::new();
    for component in written.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            _ => return Err(format!("`{}` is not a path below the recorded folder", written.display())),
        }
    }
    Ok(path)
}

/// Decodes `%XX`.
fn decode(field: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoded = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            decoded.push(byte);
            rest = after;
            continue;
        }
        let (value, after) =
            escaped(after).ok_or_else(|| format!("`{}` has a `%` without XX", field.escape_ascii()))?;
        decoded.push(value);
        rest = after;
    }
    Ok(decoded)
}

/// Returns the byte of two hexadecimal digits, and the rest.
fn escaped(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&[high, low], after) = bytes.split_first_chunk::<2>()?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some(((digit(high)? * 16 + digit(low)?) as u8, after))
}
