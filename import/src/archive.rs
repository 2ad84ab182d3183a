//! The members of a tar archive that is not compressed, each readable where it lies.
//!
//! Formats: ustar, GNU's long names, pax records for path and size. Only regular files are given; folders are passed
//! over. Links, devices and sparse files are refused, and so are names that lead out of the archive. Nothing is
//! unpacked: a member is a [`Slice`] of the archive.

use std::collections::HashSet;
use std::sync::Arc;

use content::{Algorithm, Digest, Hasher};

use crate::{Error, NamedFile, ReadAt, Slice, relative_name};

/// Headers, contents and the end are multiples of this, in bytes.
const BLOCK: u64 = 512;
/// The most members that are read; folders count.
const MAX_MEMBERS: usize = 20_000;
/// The longest pax record set or GNU name that is read, in bytes.
const MAX_EXTENSION: u64 = 64 << 10;

/// The buffer for reading all of an archive, in bytes.
const BUFFER: u64 = 1 << 20;

/// The regular files of an archive, in their order.
pub fn members(archive: &Arc<dyn ReadAt>) -> Result<Vec<NamedFile>, Error> {
    Ok(slices(archive)?.into_iter().map(named).collect())
}

/// The same of an archive that must have a digest. Each member's own digest is found out on the way and is its identity:
/// who reads a member later can tell whether it got what was looked at now.
pub fn verified_members(archive: &Arc<dyn ReadAt>, expected: &Digest) -> Result<Vec<NamedFile>, Error> {
    let slices = slices(archive)?;
    let failed = |e| Error::io("read", archive.name(), e);
    let mut whole = Hasher::new(expected.algorithm());
    let mut hashers: Vec<Hasher> = slices.iter().map(|_| Hasher::new(Algorithm::Sha256)).collect();
    let mut buffer = vec![0; BUFFER as usize];
    let (size, mut at, mut current) = (archive.size(), 0, 0);
    while at < size {
        let piece = &mut buffer[..BUFFER.min(size - at) as usize];
        archive.read_exact_at(piece, at).map_err(failed)?;
        whole.update(piece);
        let end = at + piece.len() as u64;
        while let Some(slice) = slices.get(current) {
            let place = slice.place();
            let (from, to) = (place.start.clamp(at, end), place.end.clamp(at, end));
            hashers[current].update(&piece[(from - at) as usize..(to - at) as usize]);
            if place.end > end {
                break;
            }
            current += 1;
        }
        at = end;
    }
    let found = whole.finish();
    if found != *expected {
        let name = archive.name();
        return Err(Error::Source(format!("`{name}` has the digest `{found}`, its manifest says `{expected}`")));
    }
    Ok(slices.into_iter().zip(hashers).map(|(slice, hasher)| named(slice.with_digest(hasher.finish()))).collect())
}

fn named(slice: Slice) -> NamedFile {
    NamedFile { name: slice.member_name().to_owned(), source: Arc::new(slice) }
}

/// The members in the order of their bytes.
fn slices(archive: &Arc<dyn ReadAt>) -> Result<Vec<Slice>, Error> {
    let reader = Reader { archive };
    reader.refuse_compressed()?;
    let mut files = Vec::new();
    let mut names = HashSet::new();
    let mut next = Extension::default();
    let mut at = 0;
    for _ in 0..MAX_MEMBERS {
        let Some(mut header) = reader.header(at)? else { return Ok(files) };
        let begin = at + BLOCK;
        if matches!(header.kind, b'L' | b'K' | b'x' | b'g') {
            reader.extend(&mut next, &header, begin)?;
        } else {
            header.extend(std::mem::take(&mut next));
            if let Some(file) = reader.file(&header, begin)? {
                if !names.insert(file.member_name().to_owned()) {
                    return Err(reader.refuse(at, &format!("there is a second `{}`", file.member_name())));
                }
                files.push(file);
            }
        }
        at = reader.after(begin, header.size)?;
    }
    Err(reader.refuse(at, &format!("it has more than {MAX_MEMBERS} members")))
}

/// What precedes a header and says more about it.
#[derive(Default, PartialEq, Eq)]
struct Extension {
    name: Option<String>,
    size: Option<u64>,
}

struct Header {
    name: String,
    size: u64,
    kind: u8,
}

impl Header {
    fn extend(&mut self, extension: Extension) {
        self.name = extension.name.unwrap_or_else(|| std::mem::take(&mut self.name));
        self.size = extension.size.unwrap_or(self.size);
    }
}

struct Reader<'a> {
    archive: &'a Arc<dyn ReadAt>,
}

impl Reader<'_> {
    fn refuse(&self, at: u64, reason: &str) -> Error {
        Error::Source(format!("`{}` is not a readable tar archive: {reason} (byte {at})", self.archive.name()))
    }

    fn refuse_compressed(&self) -> Result<(), Error> {
        self.archive.read_exact_at(&mut [], 0).map_err(|e| Error::io("open", self.archive.name(), e))?;
        let mut magic = [0; 4];
        let length = self.archive.size().min(4) as usize;
        self.read(&mut magic[..length], 0)?;
        let kind = match magic {
            [0x1f, 0x8b, ..] => "gzip",
            [0x28, 0xb5, 0x2f, 0xfd] => "zstd",
            _ => return Ok(()),
        };
        let name = self.archive.name();
        Err(Error::Source(format!(
            "`{name}` is compressed with {kind}; weights are read at any place of an archive, which a compressed one \
             does not allow: pack them without compression"
        )))
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Error> {
        self.archive.read_exact_at(buffer, at).map_err(|e| Error::io("read", self.archive.name(), e))
    }

    /// Where the block after a member's content is.
    fn after(&self, begin: u64, length: u64) -> Result<u64, Error> {
        let end = length.checked_next_multiple_of(BLOCK).and_then(|length| begin.checked_add(length));
        end.ok_or_else(|| self.refuse(begin, &format!("a member claims {length} bytes")))
    }

    /// The header at `at`; `None` at the end.
    fn header(&self, at: u64) -> Result<Option<Header>, Error> {
        let room = self.archive.size().saturating_sub(at);
        // Some writers leave out the two empty blocks at the end.
        if room == 0 {
            return Ok(None);
        }
        if room < BLOCK {
            return Err(self.refuse(at, "it ends within a header; it was cut"));
        }
        let mut block = [0; BLOCK as usize];
        self.read(&mut block, at)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The checksum counts its own field as spaces.
        let counted = |(i, byte): (usize, &u8)| if (148..156).contains(&i) { 32 } else { u64::from(*byte) };
        if number(&block[148..156]) != Some(block.iter().enumerate().map(counted).sum()) {
            return Err(self.refuse(at, "a header's checksum is wrong"));
        }
        let size = number(&block[124..136]).ok_or_else(|| self.refuse(at, "a header has no readable size"))?;
        let mut name = self.text(&block[..100], at)?;
        // GNU's own format has other things where ustar has the prefix.
        if block[257..263] == *b"ustar\0" {
            let prefix = self.text(&block[345..500], at)?;
            if !prefix.is_empty() {
                name = format!("{prefix}/{name}");
            }
        }
        Ok(Some(Header { name, size, kind: block[156] }))
    }

    /// The file behind a header; `None` for a folder.
    fn file(&self, header: &Header, begin: u64) -> Result<Option<Slice>, Error> {
        let name = &header.name;
        match header.kind {
            b'5' => Ok(None),
            // Before there was a type for folders they were told by their names.
            0 | b'0' if name.ends_with('/') => Ok(None),
            0 | b'0' | b'7' => {
                let name = relative_name(name)?;
                let slice = Slice::new(Arc::clone(self.archive), &name, begin, header.size)
                    .map_err(|e| Error::io("read", self.archive.name(), e))?;
                Ok(Some(slice))
            }
            b'1' | b'2' => Err(self.refuse(begin, &format!("`{name}` is a link; pack files only"))),
            kind => {
                let kind = char::from(kind).escape_default();
                Err(self.refuse(begin, &format!("`{name}` is of type `{kind}`; pack files only")))
            }
        }
    }

    /// Takes in what a record says of the next header.
    fn extend(&self, next: &mut Extension, header: &Header, begin: u64) -> Result<(), Error> {
        match header.kind {
            b'L' => next.name = Some(self.text(&self.record(header, begin)?, begin)?),
            b'x' => self.pax(header, begin, next)?,
            b'g' => {
                // It applies to all that follow, where neither a path nor a size makes sense; times and owners do.
                let mut global = Extension::default();
                self.pax(header, begin, &mut global)?;
                if global != Extension::default() {
                    return Err(self.refuse(begin, "a global record has a path or size"));
                }
            }
            // The long name of a link's target; the link itself is refused.
            _ => {}
        }
        Ok(())
    }

    /// The text before the first zero.
    fn text(&self, field: &[u8], at: u64) -> Result<String, Error> {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        let text = std::str::from_utf8(&field[..end]).map_err(|_| self.refuse(at, "a name is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// The content of a record.
    fn record(&self, header: &Header, begin: u64) -> Result<Vec<u8>, Error> {
        if header.size > MAX_EXTENSION {
            let size = header.size;
            return Err(self.refuse(begin, &format!("a record has {size} bytes, {MAX_EXTENSION} at most are read")));
        }
        let mut bytes = vec![0; header.size as usize];
        self.read(&mut bytes, begin)?;
        Ok(bytes)
    }

    /// Reads `LENGTH KEY=VALUE\n` records; LENGTH counts the whole record.
    fn pax(&self, header: &Header, begin: u64, into: &mut Extension) -> Result<(), Error> {
        let bytes = self.record(header, begin)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (pair, after) = pair(rest).ok_or_else(|| self.refuse(begin, "a pax record is malformed"))?;
            rest = after;
            match pair {
                (b"path", value) => into.name = Some(self.text(value, begin)?),
                (b"size", value) => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    into.size = Some(size.ok_or_else(|| self.refuse(begin, "a pax size is not a number"))?);
                }
                (key, _) if key.starts_with(b"GNU.sparse") => {
                    return Err(self.refuse(begin, "a file is sparse; pack it whole"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Key and value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// The first record, and what follows it.
fn pair(bytes: &[u8]) -> Option<(Pair<'_>, &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), &bytes[length..]))
}

/// An octal number that ends with a space or zero; or GNU's binary, told by its highest bit.
fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        let (first, rest) = field.split_first()?;
        // 0xff would begin a negative number.
        let start = (*first != 0xff).then_some(u64::from(first & 0x7f))?;
        return rest.iter().try_fold(start, |value, byte| value.checked_mul(256)?.checked_add(u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches([' ', '\0']);
    u64::from_str_radix(if digits.is_empty() { "0" } else { digits }, 8).ok()
}

#[cfg(test)]
mod tests;
