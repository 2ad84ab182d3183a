//! The sled database of the index: references of documents, and notes about blobs.
//!
//! A digest in keys and values is a byte for the algorithm and the bytes of the hash. Trees:
//!
//! - `edges`: the key is a document; the value is the digests that it refers to.
//! - `referrers`: the key is a digest and that of a document that refers to it; no value.
//! - `subjects`: the key is a digest and that of a document about it; no value.
//! - `notes`: the key is a digest and the kind of note; the value belongs to the owner of the kind,
//!   for example the tensors of a blob.

use std::path::Path;

use content::{Algorithm, Digest};

/// Memory of sled's page cache, in bytes. The index is small, and the operating system caches too.
const CACHE: u64 = 8 << 20;
/// Interval at which sled flushes, in milliseconds.
const FLUSH: u64 = 1000;
/// The kind of note that holds the subject of a document.
const SUBJECT: &str = "subject";

#[derive(Debug)]
pub(super) struct Database {
    db: sled::Db,
    edges: sled::Tree,
    referrers: sled::Tree,
    subjects: sled::Tree,
    notes: sled::Tree,
}

impl Database {
    pub(super) fn open(path: &Path) -> sled::Result<Self> {
        let db = sled::Config::new().path(path).cache_capacity(CACHE).flush_every_ms(Some(FLUSH)).open()?;
        Ok(Self {
            edges: db.open_tree("edges")?,
            referrers: db.open_tree("referrers")?,
            subjects: db.open_tree("subjects")?,
            notes: db.open_tree("notes")?,
            db,
        })
    }

    pub(super) fn flush(&self) -> sled::Result<()> {
        self.db.flush().map(drop)
    }

    /// Forgets a blob and all facts about it.
    pub(super) fn remove_blob(&self, digest: &Digest) -> sled::Result<()> {
        for child in self.edges(digest)?.unwrap_or_default() {
            self.referrers.remove(pair(&child, digest))?;
        }
        self.edges.remove(key(digest))?;
        if let Some(subject) = self.note(SUBJECT, digest)?.as_deref().map(digests).transpose()?
            && let [subject] = subject[..]
        {
            self.subjects.remove(pair(&subject, digest))?;
        }
        self.remove_note(SUBJECT, digest)?;
        self.remove_notes(digest)
    }

    /// Forgets the notes about a blob, except its subject, which follows from its digest.
    pub(super) fn remove_notes(&self, digest: &Digest) -> sled::Result<()> {
        let subject = note_key(SUBJECT, digest);
        for key in self.notes.scan_prefix(key(digest)).keys() {
            let key = key?;
            if *key != *subject {
                self.notes.remove(key)?;
            }
        }
        Ok(())
    }

    pub(super) fn record_edges(&self, parent: &Digest, children: &[Digest]) -> sled::Result<()> {
        for child in children {
            self.referrers.insert(pair(child, parent), "")?;
        }
        // Written last: a reader that finds the edges assumes that the other entries exist.
        self.edges.insert(key(parent), children.iter().flat_map(key).collect::<Vec<u8>>())?;
        Ok(())
    }

    pub(super) fn record_subject(&self, document: &Digest, subject: &Digest) -> sled::Result<()> {
        self.subjects.insert(pair(subject, document), "")?;
        self.set_note(SUBJECT, document, &key(subject))
    }

    pub(super) fn about(&self, subject: &Digest) -> sled::Result<Vec<Digest>> {
        seconds(&self.subjects, subject)
    }

    pub(super) fn edges(&self, parent: &Digest) -> sled::Result<Option<Vec<Digest>>> {
        self.edges.get(key(parent))?.map(|value| digests(&value)).transpose()
    }

    pub(super) fn referrers(&self, child: &Digest) -> sled::Result<Vec<Digest>> {
        seconds(&self.referrers, child)
    }

    pub(super) fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) -> sled::Result<()> {
        self.notes.insert(note_key(kind, about), note).map(drop)
    }

    pub(super) fn remove_note(&self, kind: &str, about: &Digest) -> sled::Result<()> {
        self.notes.remove(note_key(kind, about)).map(drop)
    }

    pub(super) fn note(&self, kind: &str, about: &Digest) -> sled::Result<Option<Vec<u8>>> {
        Ok(self.notes.get(note_key(kind, about))?.map(|note| note.to_vec()))
    }
}

/// A digest as it is in keys and values.
fn key(digest: &Digest) -> Vec<u8> {
    let algorithm = match digest.algorithm() {
        Algorithm::Sha256 => 0,
        Algorithm::Sha512 => 1,
    };
    [&[algorithm], digest.as_bytes()].concat()
}

fn pair(first: &Digest, second: &Digest) -> Vec<u8> {
    [key(first), key(second)].concat()
}

fn note_key(kind: &str, about: &Digest) -> Vec<u8> {
    [&key(about), kind.as_bytes()].concat()
}

/// The second digests of the keys that begin with `first`.
fn seconds(tree: &sled::Tree, first: &Digest) -> sled::Result<Vec<Digest>> {
    let prefix = key(first);
    let mut found = Vec::new();
    for key in tree.scan_prefix(&prefix).keys() {
        found.append(&mut digests(&key?[prefix.len()..])?);
    }
    Ok(found)
}

/// Parses consecutive digests.
fn digests(mut bytes: &[u8]) -> sled::Result<Vec<Digest>> {
    let bad = || sled::Error::Unsupported("the index has other bytes where a digest should be".to_owned());
    let mut found = Vec::new();
    while let Some((algorithm, rest)) = bytes.split_first() {
        let algorithm = match algorithm {
            0 => Algorithm::Sha256,
            1 => Algorithm::Sha512,
            _ => return Err(bad()),
        };
        let (hash, rest) = rest.split_at_checked(algorithm.length()).ok_or_else(bad)?;
        found.push(Digest::from_bytes(algorithm, hash).ok_or_else(bad)?);
        bytes = rest;
    }
    Ok(found)
}
