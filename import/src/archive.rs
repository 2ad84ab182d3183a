//! Members of an uncompressed tar archive, each readable at its offset.
//!
//! Uses the same parser as readers of streams. Only regular files are returned; folders are
//! skipped. Links, devices, sparse files and names that lead out of the archive are refused.
//! Nothing is unpacked: a member is a [`Slice`] of the archive.

use std::collections::HashSet;
use std::sync::Arc;

use archive::{BLOCK, Entry, HeaderBlock, Headers, Kind, Next, padding};
use content::{Algorithm, Digest, Hasher};

use crate::{Error, NamedFile, ReadAt, Slice, relative_name};

/// Size of the buffer for reading a whole archive, in bytes.
const BUFFER: u64 = 1 << 20;

/// Returns the regular files of an archive, in their order.
pub fn members(archive: &Arc<dyn ReadAt>) -> Result<Vec<NamedFile>, Error> {
    Ok(slices(archive)?.into_iter().map(named).collect())
}

/// Returns the regular files of an archive, and verifies the digest of the archive. The digest of
/// each member is computed in the same pass and becomes its identity. A later reader of a member
/// can check that the bytes are still the same.
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

/// Returns the regular files in the order of their bytes.
fn slices(archive: &Arc<dyn ReadAt>) -> Result<Vec<Slice>, Error> {
    let reader = Reader { archive };
    reader.refuse_compressed()?;
    let (mut headers, mut at) = (Headers::default(), 0);
    let mut files = Vec::new();
    let mut names = HashSet::new();
    while let Some(block) = reader.block(at)? {
        let begin = at + BLOCK;
        let size = match headers.block(&block, at).map_err(|e| reader.refused(&e))? {
            Next::End => break,
            Next::Skip(size) => size,
            Next::Record(size) => {
                let mut record = vec![0; size as usize];
                reader.read(&mut record, begin)?;
                headers.record(&record, begin).map_err(|e| reader.refused(&e))?;
                size
            }
            Next::Member(entry, size) => {
                if entry.kind == Kind::File {
                    let file = reader.file(&entry, begin)?;
                    if !names.insert(file.member_name().to_owned()) {
                        let reason = format!("there is a second `{}`", file.member_name());
                        return Err(reader.refused(&archive::Error::Malformed { offset: at, reason }));
                    }
                    files.push(file);
                }
                size
            }
        };
        let end = begin.checked_add(size).and_then(|end| end.checked_add(padding(size)));
        at = end.ok_or_else(|| {
            let reason = format!("a member claims {size} bytes");
            reader.refused(&archive::Error::Malformed { offset: at, reason })
        })?;
    }
    Ok(files)
}

struct Reader<'a> {
    archive: &'a Arc<dyn ReadAt>,
}

impl Reader<'_> {
    fn refused(&self, error: &archive::Error) -> Error {
        Error::Source(format!("`{}`: {error}", self.archive.name()))
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

    /// Reads the block at `at`; `None` at the end of the file.
    fn block(&self, at: u64) -> Result<Option<HeaderBlock>, Error> {
        let room = self.archive.size().saturating_sub(at);
        // Some writers omit the two zero blocks at the end.
        if room == 0 {
            return Ok(None);
        }
        if room < BLOCK {
            let reason = "it ends within a header; the archive is truncated".to_owned();
            return Err(self.refused(&archive::Error::Malformed { offset: at, reason }));
        }
        let mut block: HeaderBlock = [0; BLOCK as usize];
        self.read(&mut block, at)?;
        Ok(Some(block))
    }

    /// Returns the file whose bytes start at `begin`.
    fn file(&self, entry: &Entry, begin: u64) -> Result<Slice, Error> {
        let name = relative_name(&entry.path)?;
        Slice::new(Arc::clone(self.archive), &name, begin, entry.size)
            .map_err(|e| Error::io("read", self.archive.name(), e))
    }
}

#[cfg(test)]
mod tests;
