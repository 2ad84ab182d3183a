//! Writes one file of a plan and verifies its bytes.
//!
//! If the digest of the file is known, only the file is hashed; on a mismatch each blob is
//! verified, to name the damaged one. If the digest is unknown, every blob is hashed while it is
//! written. In both cases an error can occur after bytes were written, so the caller gives the file
//! its final name only afterwards.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use content::{Algorithm, Digest, Hasher};

use super::{ConvertedArray, ExportFile, FilePiece};
use import::{Error, OpenBlob, ReadAt, digest_of};

/// Size of the read buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// Writes the file and returns its SHA-256.
///
/// # Errors
/// [`Error::Damaged`] names a blob whose bytes do not match its digest. [`Error::Changed`] means
/// that the file has another digest than expected although its blobs are intact. [`Error::Io`]
/// means that a blob cannot be read or that `sink` fails.
pub fn write_file(file: &ExportFile, open: &OpenBlob, sink: &mut dyn Write) -> Result<Digest, Error> {
    let checked = file.sha256.is_none().then(HashSet::new);
    let mut writer =
        Writer { file, open, sink, hasher: Hasher::new(Algorithm::Sha256), buffer: vec![0; BUFFER], checked };
    for piece in file.pieces() {
        writer.piece(piece)?;
    }
    let found = writer.hasher.finish();
    match file.sha256 {
        Some(expected) if expected != found => {
            find_damage(file, open)?;
            Err(Error::Changed { name: file.name().to_owned(), expected, found })
        }
        _ => Ok(found),
    }
}

struct Writer<'a> {
    file: &'a ExportFile,
    open: &'a OpenBlob,
    sink: &'a mut dyn Write,
    hasher: Hasher,
    buffer: Vec<u8>,
    /// Blobs that were verified; `None` if the digest of the file suffices.
    checked: Option<HashSet<Digest>>,
}

impl Writer<'_> {
    fn piece(&mut self, piece: &FilePiece) -> Result<(), Error> {
        match piece {
            FilePiece::Bytes(bytes) => self.put(bytes),
            FilePiece::Zeros(count) => {
                let zeros = vec![0; BUFFER.min(*count as usize)];
                let mut left = *count;
                while left > 0 {
                    let part = &zeros[..(BUFFER as u64).min(left) as usize];
                    self.put(part)?;
                    left -= part.len() as u64;
                }
                Ok(())
            }
            FilePiece::Blob { blob, begin, size } => self.blob(blob, *begin, *size),
            FilePiece::Array(array) => self.array(array),
        }
    }

    /// Computes an array, after its blobs are verified.
    fn array(&mut self, array: &ConvertedArray) -> Result<(), Error> {
        if let Some(checked) = &mut self.checked {
            for part in &array.tensor.parts {
                if checked.insert(part.blob) {
                    verify(&part.blob, &*opened(&part.blob, self.open)?)?;
                }
            }
        }
        let conversion = array.conversion(self.open)?;
        conversion.write_array(array.role, &mut |bytes| self.put(bytes))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hasher.update(bytes);
        self.sink.write_all(bytes).map_err(|e| Error::io("write", self.file.name(), e))
    }

    fn blob(&mut self, blob: &Digest, begin: u64, size: u64) -> Result<(), Error> {
        let source = opened(blob, self.open)?;
        let mut check = self.begin_check(blob, &*source, begin, size)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut done = 0;
        while done < size {
            let part = &mut buffer[..(BUFFER as u64).min(size - done) as usize];
            source.read_exact_at(part, begin + done).map_err(|e| unreadable(blob, e))?;
            if let Some(hasher) = &mut check {
                hasher.update(part);
            }
            self.put(part)?;
            done += part.len() as u64;
        }
        self.buffer = buffer;
        if let Some(hasher) = check {
            compare(blob, &hasher.finish())?;
            if let Some(checked) = &mut self.checked {
                checked.insert(*blob);
            }
        }
        Ok(())
    }

    /// Prepares the verification of a blob that is not verified yet. If the part ends at the end of
    /// its blob, the bytes before it are hashed here and the part itself while it is written. Any
    /// other blob is hashed completely here.
    fn begin_check(
        &mut self,
        blob: &Digest,
        source: &dyn ReadAt,
        begin: u64,
        size: u64,
    ) -> Result<Option<Hasher>, Error> {
        let Some(checked) = &mut self.checked else { return Ok(None) };
        if checked.contains(blob) {
            return Ok(None);
        }
        if begin.checked_add(size) != Some(source.size()) {
            verify(blob, source)?;
            checked.insert(*blob);
            return Ok(None);
        }
        let mut hasher = Hasher::new(blob.algorithm());
        let mut at = 0;
        while at < begin {
            let part = &mut self.buffer[..(BUFFER as u64).min(begin - at) as usize];
            source.read_exact_at(part, at).map_err(|e| unreadable(blob, e))?;
            hasher.update(part);
            at += part.len() as u64;
        }
        Ok(Some(hasher))
    }
}

fn opened(blob: &Digest, open: &OpenBlob) -> Result<Arc<dyn ReadAt>, Error> {
    let source = open(blob).map_err(|e| unreadable(blob, e))?;
    // The size is unknown before a first read.
    source.read_exact_at(&mut [], 0).map_err(|e| unreadable(blob, e))?;
    Ok(source)
}

/// Returns an error that names the first blob of the file whose bytes do not match its digest.
fn find_damage(file: &ExportFile, open: &OpenBlob) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for piece in file.pieces() {
        if let FilePiece::Blob { blob, .. } = piece
            && seen.insert(*blob)
        {
            verify(blob, &*opened(blob, open)?)?;
        }
    }
    Ok(())
}

fn verify(blob: &Digest, source: &dyn ReadAt) -> Result<(), Error> {
    let found = digest_of(source, blob.algorithm()).map_err(|e| unreadable(blob, e))?;
    compare(blob, &found)
}

fn compare(blob: &Digest, found: &Digest) -> Result<(), Error> {
    if found == blob { Ok(()) } else { Err(Error::Damaged { blob: *blob, reason: format!("it hashes to `{found}`") }) }
}

fn unreadable(blob: &Digest, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Damaged { blob: *blob, reason: "it is too short".to_owned() },
        io::ErrorKind::NotFound => Error::Damaged { blob: *blob, reason: "it is missing".to_owned() },
        _ => Error::io("read blob", blob, error),
    }
}
