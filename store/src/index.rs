//! The index: a sled database with what can be read again from the files, only slower.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `blobs` | digest | size in bytes, u64 |
//! | `edges` | digest of a document | digests it refers to, one text line each |
//! | `referrers` | digest, `<`, digest of a document that refers to it | – |
//! | `subjects` | digest, `<`, digest of a document about it | – |
//! | `notes` | digest, `:`, kind | what the kind's owner wrote about the blob, e.g. its tensors |
//! | `state` | `open` | – while a process has the store open: found at the next start after a crash |

use std::path::Path;

use content::Digest;

use crate::{Error, files};

/// Memory that sled may use for its pages, in bytes: the index is small and the operating system caches too.
const CACHE: u64 = 8 << 20;
/// The kind of note that has the subject of a document.
const SUBJECT: &str = "subject";

#[derive(Debug)]
pub(crate) struct Index {
    db: sled::Db,
    blobs: sled::Tree,
    edges: sled::Tree,
    referrers: sled::Tree,
    subjects: sled::Tree,
    notes: sled::Tree,
    state: sled::Tree,
}

impl Index {
    /// Opens the index; says whether it must be filled again, because it is new, was damaged or not closed.
    pub(crate) fn open(path: &Path) -> Result<(Self, bool), Error> {
        let index = match Self::try_open(path) {
            Ok(index) => index,
            Err(error) => {
                tracing::warn!(%error, "the index cannot be opened and is made anew");
                files::remove_folder(path)?;
                Self::try_open(path)?
            }
        };
        let crashed = index.state.contains_key("open")?;
        let fresh = crashed || !index.db.was_recovered();
        Ok((index, fresh))
    }

    fn try_open(path: &Path) -> Result<Self, Error> {
        let db = sled::Config::new().path(path).cache_capacity(CACHE).flush_every_ms(Some(1000)).open()?;
        Ok(Self {
            blobs: db.open_tree("blobs")?,
            edges: db.open_tree("edges")?,
            referrers: db.open_tree("referrers")?,
            subjects: db.open_tree("subjects")?,
            notes: db.open_tree("notes")?,
            state: db.open_tree("state")?,
            db,
        })
    }

    pub(crate) fn mark_open(&self) -> Result<(), Error> {
        self.state.insert("open", "")?;
        self.db.flush()?;
        Ok(())
    }

    pub(crate) fn mark_closed(&self) -> Result<(), Error> {
        self.state.remove("open")?;
        self.db.flush()?;
        Ok(())
    }

    pub(crate) fn clear(&self) -> Result<(), Error> {
        for tree in [&self.blobs, &self.edges, &self.referrers, &self.subjects, &self.notes] {
            tree.clear()?;
        }
        Ok(())
    }

    /// Forgets what documents refer to, so that all are described again.
    pub(crate) fn clear_edges(&self) -> Result<(), Error> {
        for tree in [&self.edges, &self.referrers, &self.subjects] {
            tree.clear()?;
        }
        Ok(())
    }

    pub(crate) fn clear_blobs(&self) -> Result<(), Error> {
        Ok(self.blobs.clear()?)
    }

    pub(crate) fn record_blob(&self, digest: &Digest, size: u64) -> Result<(), Error> {
        self.blobs.insert(digest.to_string(), &size.to_be_bytes())?;
        Ok(())
    }

    pub(crate) fn blobs(&self) -> impl Iterator<Item = Result<(Digest, u64), Error>> {
        self.blobs.iter().map(|entry| {
            let (key, value) = entry?;
            Ok((digest(&key)?, number(&value)?))
        })
    }

    /// Forgets a blob and all that was known of it.
    pub(crate) fn remove_blob(&self, digest: &Digest) -> Result<(), Error> {
        self.blobs.remove(digest.to_string())?;
        for child in self.edges(digest)?.unwrap_or_default() {
            self.referrers.remove(format!("{child}<{digest}"))?;
        }
        self.edges.remove(digest.to_string())?;
        if let Some(subject) = self.note(SUBJECT, digest)? {
            self.subjects.remove([&subject, b"<".as_slice(), digest.to_string().as_bytes()].concat())?;
        }
        for key in self.notes.scan_prefix(format!("{digest}:")).keys() {
            self.notes.remove(key?)?;
        }
        Ok(())
    }

    pub(crate) fn record_edges(&self, parent: &Digest, children: &[Digest]) -> Result<(), Error> {
        let lines: Vec<String> = children.iter().map(ToString::to_string).collect();
        for child in children {
            self.referrers.insert(format!("{child}<{parent}"), "")?;
        }
        // Last: whoever finds it takes the rest to be there.
        self.edges.insert(parent.to_string(), lines.join("\n").as_str())?;
        Ok(())
    }

    pub(crate) fn record_subject(&self, document: &Digest, subject: &Digest) -> Result<(), Error> {
        self.subjects.insert(format!("{subject}<{document}"), "")?;
        self.set_note(SUBJECT, document, subject.to_string().as_bytes())
    }

    pub(crate) fn about(&self, subject: &Digest) -> Result<Vec<Digest>, Error> {
        before(&self.subjects, subject)
    }

    pub(crate) fn edges(&self, parent: &Digest) -> Result<Option<Vec<Digest>>, Error> {
        let Some(value) = self.edges.get(parent.to_string())? else { return Ok(None) };
        value.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(digest).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn referrers(&self, child: &Digest) -> Result<Vec<Digest>, Error> {
        before(&self.referrers, child)
    }

    pub(crate) fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) -> Result<(), Error> {
        self.notes.insert(format!("{about}:{kind}"), note)?;
        Ok(())
    }

    pub(crate) fn remove_note(&self, kind: &str, about: &Digest) -> Result<(), Error> {
        self.notes.remove(format!("{about}:{kind}"))?;
        Ok(())
    }

    pub(crate) fn note(&self, kind: &str, about: &Digest) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.notes.get(format!("{about}:{kind}"))?.map(|note| note.to_vec()))
    }
}

/// What stands after `named<` in the keys of a tree.
fn before(tree: &sled::Tree, named: &Digest) -> Result<Vec<Digest>, Error> {
    let prefix = format!("{named}<");
    tree.scan_prefix(&prefix).keys().map(|key| digest(&key?[prefix.len()..])).collect()
}

fn digest(bytes: &[u8]) -> Result<Digest, Error> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.parse().map_err(|_| sled::Error::Unsupported(format!("`{text}` stands where a digest should")).into())
}

fn number(bytes: &[u8]) -> Result<u64, Error> {
    let bytes = bytes.try_into().map_err(|_| sled::Error::Unsupported("a size has not 8 bytes".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}
