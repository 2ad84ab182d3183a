//! The index from the files.

use std::path::Path;

use content::Digest;

use crate::{Error, LinkKind, Store, files};

/// What the owner of a document says of it: what it refers to, and notes by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// What the document refers to.
    pub children: Vec<Digest>,
    /// What the document says something about, where it is such a one.
    pub subject: Option<Digest>,
    /// Derived facts to keep, by kind.
    pub notes: Vec<(&'static str, Vec<u8>)>,
}

/// What [`Store::rebuild`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Blobs.
    pub blobs: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Documents that tags and links name.
    pub documents: u64,
}

impl Store {
    /// Makes the index anew from blobs, tags and links. `describe` is asked about every document that those name.
    pub fn rebuild<E: From<Error>>(
        &self,
        mut describe: impl FnMut(&Digest) -> Result<Description, E>,
    ) -> Result<Rebuilt, E> {
        self.0.index.clear()?;
        let mut rebuilt = self.index_blobs()?;
        for digest in self.documents()? {
            self.describe(&digest, &describe(&digest)?)?;
            rebuilt.documents += 1;
        }
        Ok(rebuilt)
    }

    /// Records what a document refers to and what is known of it.
    pub fn describe(&self, digest: &Digest, description: &Description) -> Result<(), Error> {
        if let Some(subject) = &description.subject {
            self.0.index.record_subject(digest, subject)?;
        }
        for (kind, note) in &description.notes {
            self.0.index.set_note(kind, digest, note)?;
        }
        self.0.index.record_edges(digest, &description.children)
    }

    /// The note of a kind about a blob. `None` is also the answer after a crash: derive it again.
    pub fn note(&self, kind: &str, about: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.0.index.note(kind, about)
    }

    /// Keeps a derived fact about a blob.
    pub fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) -> Result<(), Error> {
        self.0.index.set_note(kind, about, note)
    }

    /// The documents that refer to a blob, as far as they were described.
    pub fn referrers(&self, digest: &Digest) -> Result<Vec<Digest>, Error> {
        self.0.index.referrers(digest)
    }

    /// The documents that say something about a blob, as far as they were described.
    pub fn about(&self, subject: &Digest) -> Result<Vec<Digest>, Error> {
        self.0.index.about(subject)
    }

    /// Whether the index knows what a document refers to.
    pub fn is_described(&self, digest: &Digest) -> Result<bool, Error> {
        Ok(self.0.index.edges(digest)?.is_some())
    }

    /// The documents that tags and links name.
    pub fn documents(&self) -> Result<Vec<Digest>, Error> {
        let links = self.all_links()?.into_iter().filter(|link| link.kind == LinkKind::Manifest);
        let mut documents: Vec<Digest> =
            self.tags()?.into_iter().map(|tag| tag.digest).chain(links.map(|link| link.digest)).collect();
        documents.sort_unstable();
        documents.dedup();
        Ok(documents)
    }

    /// All blobs with their sizes in bytes, as the index knows them.
    pub fn blobs(&self) -> Result<Vec<(Digest, u64)>, Error> {
        self.0.index.blobs().collect()
    }

    /// Records every blob that is on disk.
    pub(crate) fn index_blobs(&self) -> Result<Rebuilt, Error> {
        self.0.index.clear_blobs()?;
        let mut rebuilt = Rebuilt::default();
        for algorithm in files::entries(&self.0.layout.blobs())? {
            for prefix in files::entries(&algorithm.path())? {
                for blob in files::entries(&prefix.path())? {
                    let name = format!("{}:{}", algorithm.file_name().display(), blob.file_name().display());
                    let Ok(digest) = name.parse::<Digest>() else { continue };
                    // It may be deleted between the listing and now.
                    let Some(size) = size(&blob.path())? else { continue };
                    self.0.index.record_blob(&digest, size)?;
                    rebuilt.blobs += 1;
                    rebuilt.bytes += size;
                }
            }
        }
        Ok(rebuilt)
    }
}

fn size(path: &Path) -> Result<Option<u64>, Error> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("look at", path, e)),
    }
}
