//! Garbage collection: mark from tags, their kept versions, links and leases, sweep the rest.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::SystemTime;

use content::Digest;

use crate::{BLOB_LINK_LIFE, Error, LinkKind, Store, files};

/// Who is adding content, and whether somebody is deleting.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    collected: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    guards: usize,
    collecting: bool,
}

impl Gate {
    fn state(&self) -> std::sync::MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the collector away while content is added that nothing refers to yet: for one create, one load.
#[must_use = "the collector is kept away only while the guard lives"]
#[derive(Debug)]
pub struct Guard(Store);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.gate.state().guards -= 1;
    }
}

/// What a document refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Documents that refer to something themselves.
    pub documents: Vec<Digest>,
    /// Blobs.
    pub blobs: Vec<Digest>,
}

/// What a collection did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// Somebody holds a [`Guard`]; try again later.
    Deferred,
    /// Blobs that nothing referred to were deleted.
    Done {
        /// How many.
        blobs: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// Ends the collection, also when it fails.
struct Collecting<'a>(&'a Gate);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.state().collecting = false;
        self.0.collected.notify_all();
    }
}

impl Store {
    /// Keeps the collector away. Waits while a collection is under way, which takes as long as deleting files does.
    pub fn guard(&self) -> Guard {
        let gate = &self.0.gate;
        let mut state =
            gate.collected.wait_while(gate.state(), |state| state.collecting).unwrap_or_else(PoisonError::into_inner);
        state.guards += 1;
        Guard(self.clone())
    }

    /// Deletes every blob that no tag, link or lease leads to. `children` says what a tagged document refers to.
    ///
    /// # Errors
    /// [`Error::Unreadable`] where a document cannot be read: then nothing is deleted at all.
    pub fn collect(
        &self,
        now: SystemTime,
        children: impl Fn(&[u8]) -> Result<Children, String>,
    ) -> Result<Collected, Error> {
        {
            let mut state = self.0.gate.state();
            if state.guards > 0 || state.collecting {
                return Ok(Collected::Deferred);
            }
            state.collecting = true;
        }
        let _collecting = Collecting(&self.0.gate);
        let reachable = self.mark(now, children)?;
        self.sweep(&reachable)
    }

    /// The blobs that a collection would delete now, with their sizes in bytes. It changes nothing, and may be out of date
    /// as soon as somebody adds content.
    pub fn collectable(
        &self,
        now: SystemTime,
        children: impl Fn(&[u8]) -> Result<Children, String>,
    ) -> Result<Vec<(Digest, u64)>, Error> {
        let reachable = self.mark(now, children)?;
        Ok(self.blobs()?.into_iter().filter(|(digest, _)| !reachable.contains(digest)).collect())
    }

    fn mark(
        &self,
        now: SystemTime,
        children: impl Fn(&[u8]) -> Result<Children, String>,
    ) -> Result<HashSet<Digest>, Error> {
        /// No manifest is larger.
        const LIMIT: u64 = 4 << 20;
        let mut reachable: HashSet<Digest> = self.leased(now)?.into_iter().collect();
        let mut documents: Vec<Digest> = self.all_tags()?.into_iter().map(|tag| tag.digest).collect();
        documents.extend(self.all_kept_versions()?.into_iter().flat_map(|(_, digests)| digests));
        for link in self.all_links()? {
            match link.kind {
                LinkKind::Manifest => documents.push(link.digest),
                LinkKind::Blob if now.duration_since(link.modified).is_ok_and(|age| age >= BLOB_LINK_LIFE) => {
                    files::remove(&link.path)?;
                }
                LinkKind::Blob => {
                    reachable.insert(link.digest);
                }
            }
        }
        let roots: HashSet<Digest> = documents.iter().copied().collect();
        let mut read = HashSet::new();
        while let Some(digest) = documents.pop() {
            reachable.insert(digest);
            if !read.insert(digest) {
                continue;
            }
            // Indexes may list manifests that were never sent here; only what a name leads to must be there.
            if !roots.contains(&digest) && self.blob_size(&digest)?.is_none() {
                continue;
            }
            let unreadable = |reason: String| Error::Unreadable { digest, reason };
            let raw = self.read_blob(&digest, LIMIT).map_err(|e| unreadable(e.to_string()))?;
            let found = children(&raw).map_err(unreadable)?;
            reachable.extend(found.blobs);
            documents.extend(found.documents);
        }
        Ok(reachable)
    }

    fn sweep(&self, reachable: &HashSet<Digest>) -> Result<Collected, Error> {
        let (mut blobs, mut bytes) = (0, 0);
        for (digest, size) in self.blobs()? {
            if reachable.contains(&digest) {
                continue;
            }
            // First the file: an index entry without one is harmless, the other way round leaks.
            if files::remove(&self.path(&digest))? {
                blobs += 1;
                bytes += size;
            }
            self.0.index.remove_blob(&digest)?;
        }
        Ok(Collected::Done { blobs, bytes })
    }
}
