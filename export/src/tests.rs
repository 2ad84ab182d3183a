//! Tests of plans and of written files, with blobs in memory.

use std::io;
use std::sync::Arc;

use content::Digest;
use import::{Error, OpenBlob, ReadAt};

use super::{ExportFile, ExportPlan, FilePiece, write_file};

/// Bytes of a blob in a test.
#[derive(Debug)]
struct InMemory(Vec<u8>);

impl ReadAt for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = from.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(self.0.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn name(&self) -> String {
        "bytes of a test".to_owned()
    }
}

/// Returns a function that opens these blobs, given as digest and bytes.
fn open(blobs: Vec<(Digest, Vec<u8>)>) -> Arc<OpenBlob> {
    Arc::new(move |digest: &Digest| {
        let found = blobs.iter().find(|(known, _)| known == digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(InMemory(found.1.clone())) as Arc<dyn ReadAt>)
    })
}

fn part(bytes: &[u8], begin: u64, size: u64) -> FilePiece {
    FilePiece::Blob { blob: Digest::of(bytes), begin, size }
}

const BLOB: &[u8] = b"0123456789";
const WHOLE: &[u8] = b"head\0\0\x003456789\x0023";

/// A file of a header, zeros, the end of a blob, zeros, and the middle of the same blob.
fn file() -> ExportFile {
    let pieces = vec![
        FilePiece::Bytes(b"head".to_vec()),
        FilePiece::Zeros(3),
        part(BLOB, 3, 7),
        FilePiece::Zeros(1),
        part(BLOB, 2, 2),
    ];
    ExportFile::new("f", pieces).expect("a file")
}

#[test]
fn writes_the_pieces_in_their_order() {
    let open = open(vec![(Digest::of(BLOB), BLOB.to_vec())]);
    let mut written = Vec::new();
    let digest = write_file(&file(), &*open, &mut written).expect("it can be read");
    assert_eq!((written.as_slice(), digest), (WHOLE, Digest::of(WHOLE)));
    assert_eq!(file().size(), WHOLE.len() as u64);
    let known = file().known_as(Some(digest));
    assert_eq!(write_file(&known, &*open, &mut io::sink()).expect("it is the same"), digest);
    let other = file().known_as(Some(Digest::of(b"other")));
    let error = write_file(&other, &*open, &mut io::sink()).expect_err("it is another");
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

#[test]
fn names_the_damaged_blob() {
    // Damage outside of the written part counts too, such as in the header of a tensor's blob.
    for (at, known) in [(0, false), (5, false), (5, true)] {
        let mut damaged = BLOB.to_vec();
        damaged[at] ^= 1;
        let open = open(vec![(Digest::of(BLOB), damaged)]);
        let file = if known { file().known_as(Some(Digest::of(WHOLE))) } else { file() };
        let error = write_file(&file, &*open, &mut io::sink()).expect_err("it is damaged");
        assert!(matches!(error, Error::Damaged { blob, .. } if blob == Digest::of(BLOB)), "{at} {known}: {error}");
    }
    for blobs in [vec![], vec![(Digest::of(BLOB), BLOB[..6].to_vec())]] {
        let error = write_file(&file(), &*open(blobs), &mut io::sink()).expect_err("bytes are missing");
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
}

#[test]
fn refuses_names_that_lead_elsewhere() {
    for name in ["/etc/passwd", "../x", "a/../../x", "", "a\\b", "a\nb"] {
        assert!(ExportFile::new(name, Vec::new()).is_err(), "{name:?}");
    }
    let files = |names: [&str; 2]| names.map(|name| ExportFile::new(name, Vec::new()).expect(name)).to_vec();
    for (names, fits) in [(["a", "b"], true), (["a", "./a"], false), (["a", "a/b"], false), (["a/b", "a/c"], true)] {
        assert_eq!(ExportPlan::new(files(names), Vec::new()).is_ok(), fits, "{names:?}");
    }
    let huge = vec![FilePiece::Zeros(u64::MAX), FilePiece::Zeros(1)];
    assert!(ExportFile::new("a", huge).is_err(), "the size overflows");
}
