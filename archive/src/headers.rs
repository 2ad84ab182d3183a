//! Parser of tar headers, shared by readers of streams and readers at offsets.
//!
//! A reader passes block after block to [`Headers`] and follows the returned [`Next`]: it reads a
//! small record, skips bytes, or returns a member.

use crate::header::{Header, HeaderBlock};
use crate::{Error, MAX_EXTENDED, MAX_MEMBERS};

/// Member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative path with `/` as separator, without `.` and `..`.
    pub path: String,
    /// Length in bytes; 0 for folders.
    pub size: u64,
    /// Type of the member.
    pub kind: Kind,
}

/// Type of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A folder.
    Directory,
}

/// Content that follows a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the archive ends here.
    End,
    /// A record of this many bytes, at most [`MAX_EXTENDED`]. The reader passes it to
    /// [`Headers::record`]; another header follows.
    Record(u64),
    /// This many bytes, which the reader skips; another header follows.
    Skip(u64),
    /// A member and its data of this many bytes.
    Member(Entry, u64),
}

/// State of the parser between headers.
#[derive(Debug, Default)]
pub struct Headers {
    members: u64,
    /// Values from extended headers that apply to the next member.
    extended: Extended,
    /// Type of the record that the reader passes next.
    record: u8,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Extended {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Headers {
    /// Parses the header block at `offset`.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the block is not a valid header, [`Error::Refused`] for a member
    /// that is never accepted.
    pub fn block(&mut self, block: &HeaderBlock, offset: u64) -> Result<Next, Error> {
        let malformed = |reason: String| Error::Malformed { offset, reason };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(Next::End);
        }
        let header = Header::parse(block).map_err(|reason| malformed(reason.to_owned()))?;
        self.members += 1;
        if self.members > MAX_MEMBERS {
            return Err(malformed(format!("it has more than {MAX_MEMBERS} members")));
        }
        match header.kind {
            b'x' | b'L' | b'g' => {
                let size = header.size;
                if size > MAX_EXTENDED {
                    let reason = format!("an extended header has {size} bytes, {MAX_EXTENDED} at most are read");
                    return Err(malformed(reason));
                }
                self.record = header.kind;
                Ok(Next::Record(size))
            }
            // Long name of a link's target. It is skipped, because the link itself is refused.
            b'K' => Ok(Next::Skip(header.size)),
            _ => self.member(header),
        }
    }

    /// Parses the record at `offset` that [`Next::Record`] announced.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the record is invalid, [`Error::Refused`] for a sparse file.
    pub fn record(&mut self, mut record: &[u8], offset: u64) -> Result<(), Error> {
        match self.record {
            b'L' => {
                while let Some(rest) = record.strip_suffix(b"\0") {
                    record = rest;
                }
                self.extended.path = Some(record.to_vec());
                Ok(())
            }
            b'g' => {
                // A global record applies to all members that follow. Times and owners make sense
                // there; a path or a size does not.
                let mut global = Extended::default();
                pax(record, &mut global, offset)?;
                if global == Extended::default() {
                    return Ok(());
                }
                Err(Error::Malformed { offset, reason: "a global record has a path or a size".to_owned() })
            }
            _ => pax(record, &mut self.extended, offset),
        }
    }

    fn member(&mut self, header: Header) -> Result<Next, Error> {
        let extended = std::mem::take(&mut self.extended);
        let raw = extended.path.unwrap_or(header.path);
        let path = String::from_utf8(raw)
            .map_err(|error| Error::refused(&String::from_utf8_lossy(error.as_bytes()), "its path is not UTF-8"))?;
        let kind = match header.kind {
            // Before the folder type existed, a trailing slash marked a folder.
            b'0' | 0 | b'7' if path.ends_with('/') => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'5' => Kind::Directory,
            b'1' | b'2' => return Err(Error::refused(&path, "it is a link; pack files only")),
            _ => return Err(Error::refused(&path, "it is neither a file nor a folder; pack files only")),
        };
        let path = checked(&path)?;
        let size = extended.size.unwrap_or(header.size);
        Ok(Next::Member(Entry { path, size: if kind == Kind::File { size } else { 0 }, kind }, size))
    }
}

/// Parses a sequence of `LENGTH key=value\n` records; LENGTH counts the whole record.
fn pax(mut records: &[u8], extended: &mut Extended, offset: u64) -> Result<(), Error> {
    let bad =
        || Error::Malformed { offset, reason: "a pax record is malformed, expected `LENGTH key=value`".to_owned() };
    while !records.is_empty() {
        let space = records.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
        let length = std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
        let length = length.filter(|length| *length > space + 1 && *length <= records.len()).ok_or_else(bad)?;
        let (record, rest) = records.split_at(length);
        records = rest;
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(bad)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => extended.path = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                extended.size = Some(size.ok_or_else(bad)?);
            }
            _ if key.starts_with(b"GNU.sparse") => {
                let path = extended.path.as_deref().unwrap_or(b"of a sparse file");
                let path = String::from_utf8_lossy(path);
                return Err(Error::refused(&path, "it is stored with holes; write the archive without --sparse"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the path without empty and `.` parts, or refuses a path that leads out of the archive.
fn checked(path: &str) -> Result<String, Error> {
    if path.starts_with('/') {
        return Err(Error::refused(path, "its path is absolute"));
    }
    if path.contains('\0') {
        return Err(Error::refused(path, "its path has a zero byte"));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(Error::refused(path, "its path leads out of the archive"));
    }
    Ok(parts.join("/"))
}
