//! The sled database of the index: what documents refer to, and notes about blobs.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `edges` | digest of a document | digests it refers to, one text line each |
//! | `referrers` | digest, `<`, digest of a document that refers to it | – |
//! | `subjects` | digest, `<`, digest of a document about it | – |
//! | `notes` | digest, `:`, kind | what the kind's owner wrote about the blob, e.g. its tensors |

use std::path::Path;

use content::Digest;

/// Memory that sled may use for its pages, in bytes: the index is small and the operating system caches too.
const CACHE: u64 = 8 << 20;
/// How often sled writes by itself, in milliseconds.
const FLUSH: u64 = 1000;
/// The kind of note that has the subject of a document.
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

    /// Forgets a blob and all that was known of it.
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

    /// Forgets what was noted about a blob, but for what follows from its digest.
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
        // Last: whoever finds it takes the rest to be there.
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

/// What stands after `named<` in the keys of a tree.
fn before(tree: &sled::Tree, named: &Digest) -> sled::Result<Vec<Digest>> {
    let prefix = format!("{named}<");
    tree.scan_prefix(&prefix).keys().map(|key| digest(&key?[prefix.len()..])).collect()
}

fn digest(bytes: &[u8]) -> sled::Result<Digest> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| sled::Error::Unsupported(format!("`{text}` stands where a digest should")))
}
