//! Tests of blobs that lie in other files: where they are read, and that changes of the files are
//! noticed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use content::Digest;

use super::{done, put, temporary};
use crate::{Children, Error, Extent, Options, Store, Verified};

#[expect(clippy::unnecessary_wraps, reason = "the collector takes functions that may fail")]
fn nothing(_: &[u8]) -> Result<Children, String> {
    Ok(Children::default())
}

const CONTENT: &[u8] = b"....weights....more....";
const HEADER: &[u8] = b"header:";
const BLOB: &[u8] = b"header:weightsmore";

/// A store, a file, and a blob of it that lies in the file.
struct Adopted {
    _folder: tempfile::TempDir,
    store: Store,
    source: PathBuf,
    digest: Digest,
}

fn adopt(store: &Store, path: &Path, header: &[u8], places: &[(u64, u64)]) -> Result<Digest, Error> {
    let file = File::open(path).expect("the source");
    let adopted = store.blobs().adopt_file(path, &file)?;
    let extent = |(offset, size): &(u64, u64)| Extent { file: adopted.stored().clone(), offset: *offset, size: *size };
    let extents: Vec<Extent> = places.iter().map(extent).collect();
    let guard = store.guard();
    Ok(store.blobs().refer(header, &extents, &guard, &mut |_| true)?.0)
}

fn adopted() -> Adopted {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("store"), Options::default()).expect("a store");
    let source = folder.path().join("a model.gguf");
    fs::write(&source, CONTENT).expect("a file");
    let digest = adopt(&store, &source, HEADER, &[(4, 7), (15, 4)]).expect("an entry");
    assert_eq!(digest, Digest::of(BLOB));
    Adopted { _folder: folder, store, source, digest }
}

impl Adopted {
    fn read(&self) -> Result<Vec<u8>, Error> {
        self.store.blobs().open(&self.digest)?.read(0..100)
    }

    fn verify(&self) -> Verified {
        self.store.blobs().verify(&self.digest, None, &mut |_| true).expect("a check")
    }

    fn size(&self) -> Option<u64> {
        self.store.blobs().size(&self.digest).expect("a look")
    }

    /// Checks that the blob is missing because of the source, and says so.
    fn check_lost(&self, reason: &str) {
        assert_eq!(self.verify(), Verified::SourceLost, "{reason}");
        let text = self.read().expect_err(reason).to_string();
        assert!(text.contains(self.source.to_str().expect("text")) && text.contains(reason), "{text}");
        let known = self.store.blobs().missing_reason(&self.digest).expect("an entry").map(|error| error.to_string());
        assert_eq!(known, Some(text));
    }
}

#[test]
fn a_blob_is_read_where_it_lies() {
    let it = adopted();
    assert_eq!((it.size(), it.read().expect("bytes")), (Some(18), BLOB.to_vec()));
    assert_eq!(it.verify(), Verified::Good);
    assert_eq!(it.store.blobs().list(), [], "nothing was copied");
    let open = it.store.blobs().open(&it.digest).expect("the blob");
    for start in 0..=BLOB.len() {
        for end in start..=BLOB.len() {
            let mut buffer = vec![0; end - start];
            open.read_exact_at(&mut buffer, start as u64).expect("a part");
            assert_eq!(buffer, BLOB[start..end]);
        }
        assert!(open.read_exact_at(&mut vec![0; BLOB.len() - start + 1], start as u64).is_err(), "beyond the end");
    }
    assert!(open.read_exact_at(&mut [0], u64::MAX).is_err());
    let extents = it.store.blobs().extents(&it.digest).expect("an entry").expect("extents");
    let place = |from, to| extents.locate(from..to).map(|(file, offset)| (file.path().to_owned(), offset));
    assert_eq!(place(7, 14), Some((it.source.clone(), 4)));
    assert_eq!(place(9, 11), Some((it.source.clone(), 6)));
    assert_eq!(place(14, 18), Some((it.source.clone(), 15)));
    for (from, to) in [(0, 3), (6, 8), (13, 15), (17, 19), (18, 18), (9, 8)] {
        assert_eq!(place(from, to), None, "{from}..{to}");
    }
    let neighbours = adopt(&it.store, &it.source, b"", &[(0, 4), (4, 4)]).expect("an entry");
    let extents = it.store.blobs().extents(&neighbours).expect("an entry").expect("extents");
    assert!(extents.locate(2..6).is_some(), "two pieces that follow each other are one");
}

#[test]
fn an_entry_outlives_the_process() {
    let Adopted { _folder: folder, store, digest, .. } = adopted();
    drop(store);
    let store = Store::open(&folder.path().join("store"), Options::default()).expect("a store");
    assert_eq!(store.blobs().open(&digest).expect("the blob").read(0..100).expect("bytes"), BLOB);
}

type Change = fn(&Path, &[u8]);

#[test]
fn changes_of_the_source_are_noticed() {
    let other = b"....WEIGHTS....more....";
    assert_eq!(other.len(), CONTENT.len());
    let changes: [(&str, Change); 4] = [
        ("changed", |path, other| fs::write(path, other).expect("a write")),
        ("changed", |path, other| fs::write(path, &other[..20]).expect("a write")),
        ("no longer there", |path, _| fs::remove_file(path).expect("removed")),
        ("changed", |path, other| {
            fs::write(path.with_extension("new"), other).expect("a write");
            fs::rename(path.with_extension("new"), path).expect("replaced");
        }),
    ];
    for (reason, change) in changes {
        let it = adopted();
        let open = it.store.blobs().open(&it.digest).expect("the blob");
        change(&it.source, other);
        assert_eq!(it.size(), None, "{reason}");
        it.check_lost(reason);
        // A blob that was open has the old bytes, or none.
        if let Ok(bytes) = open.read(0..100) {
            assert_eq!(bytes, BLOB);
        }
    }
}

#[test]
fn a_blob_in_doubt_is_hashed_again() {
    let it = adopted();
    let moved = it.source.with_extension("moved");
    fs::rename(&it.source, &moved).expect("moved");
    it.check_lost("no longer there");
    fs::rename(&moved, &it.source).expect("moved back");
    assert_eq!((it.size(), it.read().expect("bytes")), (Some(18), BLOB.to_vec()), "it was renamed, not changed");
    // A copy with the same size and time of the last write has other bytes.
    let modified = fs::metadata(&it.source).and_then(|facts| facts.modified()).expect("a time");
    fs::write(&moved, b"....WEIGHTS....more....").expect("a write");
    fs::rename(&moved, &it.source).expect("replaced");
    File::options().write(true).open(&it.source).and_then(|file| file.set_modified(modified)).expect("the time is set");
    it.check_lost("changed");
    // Now one with the same bytes.
    fs::write(&moved, CONTENT).expect("a write");
    fs::rename(&moved, &it.source).expect("replaced");
    File::options().write(true).open(&it.source).and_then(|file| file.set_modified(modified)).expect("the time is set");
    assert_eq!((it.verify(), it.read().expect("bytes")), (Verified::Good, BLOB.to_vec()));
    let entry = fs::read_to_string(it.store.0.layout.extent_entry(&it.digest)).expect("the entry");
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&it.source).expect("facts"));
    assert!(entry.contains(&format!(" {inode} ")), "the entry has the new identity: {entry}");
}

#[test]
fn a_file_comes_before_an_entry() {
    let it = adopted();
    assert!(it.store.blobs().copy_here(&it.digest).expect("a copy"));
    assert_eq!(it.store.blobs().list(), [(it.digest, 18)]);
    assert!(!it.store.blobs().copy_here(&it.digest).expect("a look"), "the store has it");
    fs::remove_file(&it.source).expect("removed");
    assert_eq!((it.size(), it.read().expect("bytes")), (Some(18), BLOB.to_vec()));
    assert_eq!(it.store.blobs().missing_reason(&it.digest).expect("a look").map(|error| error.to_string()), None);
    // A commit of the same bytes removes an entry, too.
    let it = adopted();
    put(&it.store, BLOB);
    fs::remove_file(&it.source).expect("removed");
    assert_eq!(it.verify(), Verified::Good);
    assert!(it.store.blobs().extents(&it.digest).expect("a look").is_none());
}

#[test]
fn a_blob_that_must_be_one_file_is_copied() {
    let it = adopted();
    let file = it.store.blobs().open(&it.digest).expect("the blob").into_file().expect("a file");
    assert_eq!(file.metadata().expect("facts").len(), 18);
    assert_eq!(it.store.blobs().list(), [(it.digest, 18)]);
}

#[test]
fn a_lost_blob_can_be_adopted_again_or_fetched() {
    let it = adopted();
    let elsewhere = it.source.with_extension("elsewhere");
    fs::rename(&it.source, &elsewhere).expect("moved");
    it.check_lost("no longer there");
    assert!(!it.store.blobs().set_aside(&it.digest).expect("a look"));
    fs::rename(&elsewhere, &it.source).expect("moved back");
    assert_eq!(it.verify(), Verified::Good, "an entry is not given up because its file is away");
    fs::rename(&it.source, &elsewhere).expect("moved");
    assert_eq!(adopt(&it.store, &elsewhere, HEADER, &[(4, 7), (15, 4)]).expect("an entry"), it.digest);
    assert_eq!(it.verify(), Verified::Good);
    fs::remove_file(&elsewhere).expect("removed");
    put(&it.store, BLOB);
    assert_eq!(it.verify(), Verified::Good);
}

#[test]
fn collections_remove_entries_and_not_sources() {
    let it = adopted();
    it.store.names().set("h/r:t", &it.digest).expect("a tag");
    assert_eq!(it.store.collect(SystemTime::now(), nothing), done(0, 0));
    assert_eq!(it.verify(), Verified::Good);
    it.store.names().remove("h/r:t").expect("removed");
    assert_eq!(it.store.collectable(SystemTime::now(), nothing).blobs, [(it.digest, 0)]);
    // Also if its source is gone.
    fs::rename(&it.source, it.source.with_extension("moved")).expect("moved");
    assert_eq!(it.store.collect(SystemTime::now(), nothing), done(1, 0));
    fs::rename(it.source.with_extension("moved"), &it.source).expect("moved back");
    assert_eq!((it.size(), it.verify()), (None, Verified::Missing));
    assert_eq!(fs::read(&it.source).expect("the source"), CONTENT);
    // A blob that is being added stays.
    let guard = it.store.guard();
    let digest = adopt(&it.store, &it.source, b"", &[(0, 3)]).expect("an entry");
    it.store.collect(SystemTime::now(), nothing);
    assert_eq!(it.store.blobs().size(&digest).expect("a look"), Some(3));
    drop(guard);
    assert_eq!(it.store.collect(SystemTime::now(), nothing), done(1, 0));
}

#[test]
fn files_that_cannot_be_recorded_are_refused() {
    let (folder, store) = temporary();
    let digest = put(&store, b"blob");
    let refused = |path: &Path, says: &str| {
        let error = adopt(&store, path, b"", &[(0, 2)]).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&store.blobs().path(&digest), "is in the folder of the store");
    let outside = tempfile::tempdir().expect("a folder");
    let odd = outside.path().join("two\nlines");
    fs::write(&odd, CONTENT).expect("a file");
    refused(&odd, "line feed");
    // A link counts as the file that it leads to.
    let (target, link) = (outside.path().join("target"), outside.path().join("link"));
    fs::write(&target, CONTENT).expect("a file");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    let digest = adopt(&store, &link, b"", &[(0, 2)]).expect("an entry");
    fs::remove_file(&link).expect("removed");
    assert_eq!(store.blobs().open(&digest).expect("the blob").read(0..9).expect("bytes"), b"..");
    drop(folder);
}

#[test]
fn a_file_that_changes_while_it_is_hashed_is_refused() {
    let it = adopted();
    let file = File::open(&it.source).expect("the source");
    let adopted = it.store.blobs().adopt_file(&it.source, &file).expect("a file");
    let extents = [Extent { file: adopted.stored().clone(), offset: 0, size: 5 }];
    let refer = |on_bytes: &mut dyn FnMut(u64) -> bool| {
        it.store.blobs().refer(b"", &extents, &it.store.guard(), on_bytes).map_err(|error| error.to_string())
    };
    assert!(refer(&mut |_| false).is_err(), "the caller has canceled");
    fs::write(&it.source, b"other").expect("a write");
    let error = refer(&mut |_| true).expect_err("it was changed");
    assert!(error.contains("was changed"), "{error}");
}

#[test]
fn a_damaged_entry_is_named() {
    let it = adopted();
    let entry = it.store.0.layout.extent_entry(&it.digest);
    fs::write(&entry, b"lode extents 9\n").expect("damage");
    let error = it.read().expect_err("it cannot be read").to_string();
    assert!(error.contains(entry.to_str().expect("text")) && error.contains("lode repair"), "{error}");
    // Bytes that were never right: the entry is given up, and the blob can be fetched.
    let it = adopted();
    let entry = it.store.0.layout.extent_entry(&it.digest);
    let text = fs::read_to_string(&entry).expect("text").replace("extent 0 4 7", "extent 0 5 7");
    fs::write(&entry, text).expect("damage");
    assert!(matches!(it.verify(), Verified::WrongBytes { .. }));
    it.store.blobs().set_aside(&it.digest).expect("given up");
    assert_eq!(it.verify(), Verified::Missing);
}

#[test]
fn sizes_of_adopted_blobs_are_listed() {
    let it = adopted();
    let mut all = Vec::new();
    assert!(it.store.blobs().each_in_files(|digest, size| all.push((digest, size))).is_empty());
    assert_eq!(all, [(it.digest, 18)]);
    assert_eq!(it.store.blobs().totals(), (0, 0));
    let extents = it.store.blobs().extents(&it.digest).expect("a look").expect("extents");
    let paths: Vec<&Path> = extents.files().iter().map(|file| file.path()).collect();
    assert_eq!(paths, [it.source.as_path()]);
}
