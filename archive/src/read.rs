//! Reading an archive that anybody may have made.

use std::io::{self, Read};

use crate::header::{Block, Header};
use crate::{BLOCK, Error, MAX_EXTENDED, MAX_MEMBERS, padding};

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
    /// A file; its bytes are read from the [`Reader`].
    File,
    /// A folder.
    Directory,
}

/// Reads members one after the other. After [`next`](Self::next) it reads as the bytes of that member; what is not read is
/// passed over.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    offset: u64,
    members: u64,
    /// Bytes of the current member that were not read yet.
    left: u64,
    /// Bytes that follow them.
    padding: u64,
}

/// What extended headers say of the member after them.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<R: Read> Reader<R> {
    /// Reads the archive that `inner` is.
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, members: 0, left: 0, padding: 0 }
    }

    /// The next member; `None` at the end of the archive.
    #[expect(clippy::should_implement_trait, reason = "the member's bytes are read from here, so it is no iterator")]
    pub fn next(&mut self) -> Result<Option<Entry>, Error> {
        let mut extended = Extended::default();
        loop {
            self.pass(self.left.saturating_add(self.padding))?;
            (self.left, self.padding) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            self.members += 1;
            if self.members > MAX_MEMBERS {
                return Err(self.malformed(format!("it has more than {MAX_MEMBERS} members")));
            }
            (self.left, self.padding) = (header.size, padding(header.size));
            match header.kind {
                b'x' => {
                    let records = self.small(header.size)?;
                    self.records(&records, &mut extended)?;
                }
                b'L' => {
                    let mut name = self.small(header.size)?;
                    while name.pop_if(|byte| *byte == 0).is_some() {}
                    extended.path = Some(name);
                }
                // Comments that hold for the whole archive.
                b'g' => {}
                _ => return self.entry(header, extended).map(Some),
            }
        }
    }

    fn entry(&mut self, header: Header, extended: Extended) -> Result<Entry, Error> {
        let raw = extended.path.unwrap_or(header.path);
        let path = String::from_utf8(raw)
            .map_err(|error| Error::refused(&String::from_utf8_lossy(error.as_bytes()), "its path is not UTF-8"))?;
        let kind = match header.kind {
            b'0' | 0 | b'7' if path.ends_with('/') => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'5' => Kind::Directory,
            b'1' | b'2' => return Err(Error::refused(&path, "it is a link")),
            _ => return Err(Error::refused(&path, "it is neither a file nor a folder")),
        };
        let path = checked(&path)?;
        let size = extended.size.unwrap_or(header.size);
        (self.left, self.padding) = (size, padding(size));
        Ok(Entry { path, size: if kind == Kind::File { size } else { 0 }, kind })
    }

    /// The next header; `None` where the archive ends.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        let mut block: Block = [0; BLOCK as usize];
        let mut filled = 0;
        while filled < block.len() {
            match self.inner.read(&mut block[filled..]) {
                // Some writers leave out the zeros at the end.
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(self.malformed("it ends within a header")),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header::parse(&block).map_err(|reason| self.malformed(reason))?;
        self.offset += BLOCK;
        Ok(Some(header))
    }

    /// The bytes of an extended header.
    fn small(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        if size > MAX_EXTENDED {
            return Err(self.malformed(format!("an extended header has {size} bytes, {MAX_EXTENDED} are allowed")));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads `LENGTH key=value\n` again and again.
    fn records(&self, mut records: &[u8], extended: &mut Extended) -> Result<(), Error> {
        let bad = || self.malformed("a pax record is not `LENGTH key=value`");
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
                    return Err(Error::refused("", "it is stored with holes; write the archive without --sparse"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes over bytes that nobody wants.
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
