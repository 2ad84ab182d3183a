//! The sled database of the index: references of documents, and notes about blobs.
//!
//! Trees:
//!
//! - `edges`: the key is the digest of a document; the value is the digests that it refers to, one
//!   a line.
//! - `referrers`: the key is a digest, `<`, and the digest of a document that refers to it; no
//!   value.
//! - `subjects`: the key is a digest, `<`, and the digest of a document about it; no value.
//! - `notes`: the key is a digest, `:`, and the kind of note; the value belongs to the owner of the
//!   kind, for example the tensors of a blob.

use std::path::Path;

use content::Digest;

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
            self.referrers.remove(format!("{child}<{digest}"))?;
        }
        self.edges.remove(digest.to_string())?;
        if let Some(subject) = self.note(SUBJECT, digest)? {
            self.subjects.remove([&subject, b"<".as_slice(), digest.to_string().as_bytes()].concat())?;
        }
        self.remove_note(SUBJECT, digest)?;
        self.remove_notes(digest)
    }

    /// Forgets the notes about a blob, except its subject, which follows from its digest.
    pub(super) fn remove_notes(&self, digest: &Digest) -> sled::Result<()> {
        let subject = format!("{digest}:{SUBJECT}");
        for key in self.notes.scan_prefix(format!("{digest}:")).keys() {
            let key = key?;
            if *key != *subject.as_bytes() {
                self.notes.remove(key)?;
            }
        }
        Ok(())
    }

    pub(super) fn record_edges(&self, parent: &Digest, children: &[Digest]) -> sled::Result<()> {
        let lines: Vec<String> = children.iter().map(ToString::to_string).collect();
        for child in children {
            self.referrers.insert(format!("{child}<{parent}"), "")?;
        }
        // Written last: a reader that finds the edges assumes that the other entries exist.
        self.edges.insert(parent.to_string(), lines.join("\n").as_str())?;
        Ok(())
    }

    pub(super) fn record_subject(&self, document: &Digest, subject: &Digest) -> sled::Result<()> {
        self.subjects.insert(format!("{subject}<{document}"), "")?;
        self.set_note(SUBJECT, document, subject.to_string().as_bytes())
    }

    pub(super) fn about(&self, subject: &Digest) -> sled::Result<Vec<Digest>> {
        before(&self.subjects, subject)
    }

    pub(super) fn edges(&self, parent: &Digest) -> sled::Result<Option<Vec<Digest>>> {
        let Some(value) = self.edges.get(parent.to_string())? else { return Ok(None) };
        value.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(digest).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn referrers(&self, child: &Digest) -> sled::Result<Vec<Digest>> {
        before(&self.referrers, child)
    }

    pub(super) fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) -> sled::Result<()> {
        self.notes.insert(format!("{about}:{kind}"), note).map(drop)
    }

    pub(super) fn remove_note(&self, kind: &str, about: &Digest) -> sled::Result<()> {
        self.notes.remove(format!("{about}:{kind}")).map(drop)
    }

    pub(super) fn note(&self, kind: &str, about: &Digest) -> sled::Result<Option<Vec<u8>>> {
        Ok(self.notes.get(format!("{about}:{kind}"))?.map(|note| note.to_vec()))
    }
}

/// The digests after `named<` in the keys of a tree.
fn before(tree: &sled::Tree, named: &Digest) -> sled::Result<Vec<Digest>> {
    let prefix = format!("{named}<");
    tree.scan_prefix(&prefix).keys().map(|key| digest(&key?[prefix.len()..])).collect()
}

fn digest(bytes: &[u8]) -> sled::Result<Digest> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| sled::Error::Unsupported(format!("`{text}` stands where a digest should")))
}
