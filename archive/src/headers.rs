//! What stands before each member: one parser for readers of streams and readers at offsets.
//!
//! A reader gives it block after block and does what it says: take in a small record, pass bytes over, or give out a
//! member.

use crate::header::{Block, Header};
use crate::{Error, MAX_EXTENDED, MAX_MEMBERS};

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative, with `/` between its parts, without `.` and `..`.
    pub path: String,
    /// Length in bytes; 0 for folders.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A folder.
    Directory,
}

/// What follows a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the archive ends here.
    End,
    /// A record of so many bytes, at most [`MAX_EXTENDED`], for [`Headers::record`]; then another header.
    Record(u64),
    /// So many bytes that nobody wants; then another header.
    Skip(u64),
    /// A member, and so many bytes of data.
    Member(Entry, u64),
}

/// Parses headers one after the other.
#[derive(Debug, Default)]
pub struct Headers {
    members: u64,
    /// What records say of the member after them.
    extended: Extended,
    /// The kind of the record that is to come.
    record: u8,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Extended {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Headers {
    /// Reads the block at `offset`.
    ///
    /// # Errors
    /// [`Error::Malformed`] for what is no header, [`Error::Refused`] for a member that is never wanted.
    pub fn block(&mut self, block: &Block, offset: u64) -> Result<Next, Error> {
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
            // The long name of a link's target; the link itself is refused.
            b'K' => Ok(Next::Skip(header.size)),
            _ => self.member(header),
        }
    }

    /// Takes in the record at `offset` that [`Next::Record`] has asked for.
    ///
    /// # Errors
    /// [`Error::Malformed`] where it is none, [`Error::Refused`] for a member that is stored with holes.
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
                // It holds for all that follow, where neither a path nor a size makes sense; times and owners do.
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
            // Before there was a type for folders they were told by their names.
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

/// Reads `LENGTH key=value\n` again and again; LENGTH counts the whole record.
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

/// A path that stays within the archive.
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
