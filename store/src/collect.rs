//! Garbage collection: mark from tags, their kept versions, links and leases, sweep the rest.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::SystemTime;

use content::Digest;

use crate::{BLOB_LINK_LIFE, Error, LinkKind, Store, Verified, files};

/// No manifest is larger, in bytes.
const MAX_DOCUMENT: u64 = 4 << 20;

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

/// What a collection has found out before it deletes anything.
struct Marked {
    reachable: HashSet<Digest>,
    /// Links and leases that have run out.
    expired: Vec<(PathBuf, Option<Digest>)>,
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

    /// Deletes every blob that no tag, link or lease leads to, and that is promised to nobody. `children` says what a tagged document refers to.
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
        self.0.promises.expire(now);
        let marked = self.mark(now, children)?;
        // Nobody renews a link or a lease meanwhile: that needs a guard. Promises need none.
        for (path, blob) in &marked.expired {
            let promises = self.0.promises.lock();
            if blob.is_none_or(|blob| !promises.contains_key(&blob)) {
                files::remove(path)?;
            }
        }
        self.sweep(&marked.reachable)
    }

    /// The blobs that a collection would delete now, with their sizes in bytes. It changes nothing, and may be out of date
    /// as soon as somebody adds content.
    pub fn collectable(
        &self,
        now: SystemTime,
        children: impl Fn(&[u8]) -> Result<Children, String>,
    ) -> Result<Vec<(Digest, u64)>, Error> {
        let reachable = self.mark(now, children)?.reachable;
        let promises = self.0.promises.lock();
        let stays = |digest: &Digest| {
            reachable.contains(digest)
                || promises.get(digest).is_some_and(|places| places.values().any(|until| *until > now))
        };
        Ok(self.blobs()?.into_iter().filter(|(digest, _)| !stays(digest)).collect())
    }

    fn mark(&self, now: SystemTime, children: impl Fn(&[u8]) -> Result<Children, String>) -> Result<Marked, Error> {
        let (leased, expired) = self.leased(now)?;
        let mut expired: Vec<(PathBuf, Option<Digest>)> = expired.into_iter().map(|path| (path, None)).collect();
        let mut reachable: HashSet<Digest> = leased.into_iter().collect();
        let mut documents: Vec<Digest> = self.all_tags()?.into_iter().map(|tag| tag.digest).collect();
        documents.extend(self.all_kept_versions()?.into_iter().flat_map(|(_, digests)| digests));
        for link in self.all_links()? {
            match link.kind {
                LinkKind::Manifest => documents.push(link.digest),
                LinkKind::Blob
                    if now.duration_since(link.modified).is_ok_and(|age| age >= BLOB_LINK_LIFE)
                        && !self.0.promises.lock().contains_key(&link.digest) =>
                {
                    expired.push((link.path, Some(link.digest)));
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
            let root = roots.contains(&digest);
            // Indexes may list manifests that were never sent here; only what a name leads to must be there.
            if !root && self.blob_size(&digest)?.is_none() {
                continue;
            }
            let read = self.read_blob(&digest, MAX_DOCUMENT).map_err(|e| e.to_string()).and_then(|raw| children(&raw));
            match read {
                Ok(found) => {
                    reachable.extend(found.blobs);
                    documents.extend(found.documents);
                }
                // An index may also list what is no document. It is whole, so it is kept like any other blob.
                Err(_) if !root && self.is_other_blob(&digest)? => {}
                Err(reason) => return Err(Error::Unreadable { digest, reason }),
            }
        }
        Ok(Marked { reachable, expired })
    }

    /// Whether what cannot be read as a document is none, and not a damaged one.
    fn is_other_blob(&self, digest: &Digest) -> Result<bool, Error> {
        let large = self.blob_size(digest)?.is_some_and(|size| size > MAX_DOCUMENT);
        Ok(large || self.verify(digest, None, &mut |_| true)? == Verified::Good)
    }

    fn sweep(&self, reachable: &HashSet<Digest>) -> Result<Collected, Error> {
        let (mut blobs, mut bytes) = (0, 0);
        for (digest, size) in self.blobs()? {
            let promises = self.0.promises.lock();
            if reachable.contains(&digest) || promises.contains_key(&digest) {
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
