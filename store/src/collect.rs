//! Garbage collection: mark from tags, their kept versions, links and leases, then sweep the rest.
//!
//! A collection runs concurrently with all other operations. It puts off blobs that are added or
//! read meanwhile (`collection_lock`), and blobs that an unreadable file may refer to. It deletes
//! files first and their index entries afterwards.

use std::path::Path;
use std::time::SystemTime;

use content::Digest;

use crate::collection_lock::LockState;
use crate::mark::{Children, LeadsTo, Marked, Obstacle};
use crate::promises::{Places, Promised};
use crate::reachable::Reachable;
use crate::shelves::each_in_shelves;
use crate::sync::PoisonError;
use crate::{Error, Store, files};

/// Maximum number of reasons that are reported for blobs that were put off.
const MOST_REASONS: usize = 10;

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of deleted blobs.
    pub blobs: u64,
    /// Bytes of the deleted blobs.
    pub bytes: u64,
    /// Unreferenced blobs that were not deleted; `None` if there are none.
    pub put_off: Option<PutOff>,
    /// Blobs that only leases and promises keep.
    pub leased: Leased,
}

/// Blobs that only leases and promises keep: uploads, and the blobs of interrupted transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// The time at which the last of the leases and promises ends.
    pub until: Option<SystemTime>,
}

/// Blobs that a collection did not delete for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOff {
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// True if some of the blobs are being added or read.
    pub in_use: bool,
    /// Errors: files that could not be read and may refer to the blobs, or that could not be
    /// removed.
    pub reasons: Vec<String>,
}

/// A preview of a collection: the blobs that it would delete and put off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectable {
    /// The blobs that it would delete, with their sizes in bytes.
    pub blobs: Vec<(Digest, u64)>,
    /// See [`Collected::put_off`].
    pub put_off: Option<PutOff>,
    /// See [`Collected::leased`].
    pub leased: Leased,
}

/// The blobs that a collection would keep.
#[derive(Debug)]
pub struct Needed(Reachable);

impl Needed {
    /// Whether a blob is one of them. It may be true for others, too: a blob is known by 64 bits of
    /// its digest.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.0.contains(digest)
    }
}

/// Counts the blobs that are put off.
#[derive(Default)]
struct Left {
    blobs: u64,
    bytes: u64,
    used: bool,
    reasons: Vec<String>,
    untold: usize,
}

impl Left {
    fn add(&mut self, size: u64, used: bool) {
        (self.blobs, self.bytes) = (self.blobs + 1, self.bytes + size);
        self.used |= used;
    }

    fn because(&mut self, reason: &Error) {
        if self.reasons.len() < MOST_REASONS {
            self.reasons.push(reason.to_string());
        } else {
            self.untold += 1;
        }
    }

    fn put_off(mut self) -> Option<PutOff> {
        if self.untold > 0 {
            self.reasons.push(format!("and {} more", self.untold));
        }
        let Self { blobs, bytes, used: in_use, reasons, .. } = self;
        (in_use || !reasons.is_empty()).then_some(PutOff { blobs, bytes, in_use, reasons })
    }
}

/// The decision about one blob.
enum Fate {
    Stays,
    /// The blob may still be needed; `used` if it is being added or read.
    PutOff {
        used: bool,
    },
    Goes,
}

impl Store {
    /// Deletes every blob that no tag, link or lease leads to, that is not promised to a client,
    /// and that is not being added or read. `children` returns the references of a document. Waits
    /// for a collection that is already running.
    ///
    /// Blobs that an unreadable file may refer to are kept, and so are files that cannot be
    /// removed. [`Collected::put_off`] reports both.
    pub fn collect(&self, now: SystemTime, children: impl Fn(&[u8]) -> Result<Children, String>) -> Collected {
        let _one = self.0.collection.lock().unwrap_or_else(PoisonError::into_inner);
        let _collecting = self.0.collection_lock.begin_collection();
        self.0.promises.expire(now);
        let mut marked = self.mark(now, &children);
        if let Err(error) = self.settle_names() {
            // The removal of a name may not be durable. After a power cut the name may exist again
            // and need every blob that it led to.
            marked.obstacles.push(Obstacle { error, leads_to: LeadsTo::Anything });
        }
        let mut left = Left::default();
        for path in &marked.ended_leases {
            self.remove_ended_lease(path, now).unwrap_or_else(|error| left.because(&error));
        }
        for link in &marked.expired_links {
            self.remove_expired_link(link, now).unwrap_or_else(|error| left.because(&error));
        }
        let mut collected = Collected::default();
        for obstacle in &marked.obstacles {
            left.because(&obstacle.error);
        }
        let mut remove = |digest| match self.remove_unneeded(&digest, &marked, now, &mut left) {
            Ok(Some(size)) => {
                (collected.blobs, collected.bytes) = (collected.blobs + 1, collected.bytes + size);
            }
            Ok(None) => {}
            Err(error) => left.because(&error),
        };
        let mut unreadable = self.each_unreachable(&marked, &mut remove);
        // Blobs that the disk has were handled above.
        unreadable.extend(self.each_unreachable_elsewhere(&marked, &mut remove));
        unreadable.extend(self.remove_unused_clones());
        for error in &unreadable {
            left.because(error);
        }
        Collected { put_off: left.put_off(), leased: self.leased(&marked), ..collected }
    }

    /// Returns the result that a collection would have now. It changes nothing, and can be outdated
    /// as soon as content is added.
    pub fn collectable(&self, now: SystemTime, children: impl Fn(&[u8]) -> Result<Children, String>) -> Collectable {
        let marked = self.mark(now, &children);
        let (mut blobs, mut left) = (Vec::new(), Left::default());
        for obstacle in &marked.obstacles {
            left.because(&obstacle.error);
        }
        let mut count = |digest| {
            let Ok(Some(size)) = self.size_here(&digest) else { return };
            match fate(&digest, &marked, &self.0.promises.lock(), &self.0.collection_lock.lock(), now) {
                Fate::Stays => {}
                Fate::PutOff { used } => left.add(size, used),
                Fate::Goes => blobs.push((digest, size)),
            }
        };
        let mut unreadable = self.each_unreachable(&marked, &mut count);
        unreadable.extend(self.each_unreachable_elsewhere(&marked, &mut count));
        for error in &unreadable {
            left.because(error);
        }
        Collectable { blobs, put_off: left.put_off(), leased: self.leased(&marked) }
    }

    /// Counts the blobs in the store that only leases keep.
    fn leased(&self, marked: &Marked) -> Leased {
        let mut ends = marked.leased.clone();
        for (digest, places) in self.0.promises.lock().iter() {
            let Some(end) = places.values().max() else { continue };
            if !marked.reachable.contains(digest) || ends.contains_key(digest) {
                let latest = ends.entry(*digest).or_insert(*end);
                *latest = (*end).max(*latest);
            }
        }
        let mut leased = Leased::default();
        for (digest, end) in ends {
            let Ok(Some(size)) = self.size_here(&digest) else { continue };
            (leased.blobs, leased.bytes) = (leased.blobs + 1, leased.bytes + size);
            leased.until = leased.until.max(Some(end));
        }
        leased
    }

    /// Passes every unreachable blob to `each` that lies in other files, or that only the tier has.
    /// Returns the errors of folders that cannot be read.
    fn each_unreachable_elsewhere(&self, marked: &Marked, mut each: impl FnMut(Digest)) -> Vec<Error> {
        let is_file = |path: &Path| !matches!(files::is_there(path), Ok(false));
        let mut unreadable = each_in_shelves(&self.0.layout.extents(), |digest| {
            if !marked.reachable.contains(&digest) && !is_file(&self.blobs().path(&digest)) {
                each(digest);
            }
        });
        unreadable.extend(each_in_shelves(&self.0.layout.tier_blobs(), |digest| {
            let is_handled = is_file(&self.blobs().path(&digest)) || is_file(&self.0.layout.extent_entry(&digest));
            if !marked.reachable.contains(&digest) && !is_handled {
                each(digest);
            }
        }));
        unreadable
    }

    /// Bytes that a collection frees if it removes a blob, on the disk or in the tier; 0 for a blob
    /// that lies in other files. `None` if the blob does not exist.
    fn size_here(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let blobs = self.blobs();
        if let Some(size) = blobs.size_on_disk(digest)? {
            return Ok(Some(size));
        }
        match blobs.size_in_tier(digest)? {
            None if files::is_there(&self.0.layout.extent_entry(digest))? => Ok(Some(0)),
            found => Ok(found),
        }
    }

    /// Returns the blobs that a collection would keep, except for blobs that are being added or
    /// read.
    ///
    /// # Errors
    /// A file cannot be read that may refer to any blob.
    pub fn needed(
        &self,
        now: SystemTime,
        children: impl Fn(&[u8]) -> Result<Children, String>,
    ) -> Result<Needed, Error> {
        let mut marked = self.mark(now, &children);
        if let Some(obstacle) = marked.obstacles.pop() {
            return Err(obstacle.error);
        }
        marked.reachable.extend(self.0.promises.lock().keys().copied());
        Ok(Needed(marked.reachable))
    }

    /// Passes every unreachable blob on the disk to `each`. Returns the errors of folders that
    /// cannot be read.
    fn each_unreachable(&self, marked: &Marked, mut each: impl FnMut(Digest)) -> Vec<Error> {
        self.each_blob(|digest| {
            if !marked.reachable.contains(&digest) {
                each(digest);
            }
        })
    }

    /// Removes the file of a blob if nothing relies on it, and marks it for removal from the tier;
    /// returns its size in bytes in that case.
    fn remove_unneeded(
        &self,
        digest: &Digest,
        marked: &Marked,
        now: SystemTime,
        left: &mut Left,
    ) -> Result<Option<u64>, Error> {
        let Some(size) = self.size_here(digest)? else { return Ok(None) };
        // Both locks are held until the file is gone, so that no caller can start to rely on it.
        let (promises, collection_lock) = (self.0.promises.lock(), self.0.collection_lock.lock());
        match fate(digest, marked, &promises, &collection_lock, now) {
            Fate::Stays => Ok(None),
            Fate::PutOff { used } => {
                left.add(size, used);
                Ok(None)
            }
            Fate::Goes => {
                let remove = || {
                    let was_referred = self.forget_extents(digest)?;
                    if self.blobs().size_in_tier(digest)?.is_some() {
                        self.release_from_tier(digest)?;
                        files::remove(&self.blobs().path(digest))?;
                        return Ok(true);
                    }
                    Ok(files::remove(&self.blobs().path(digest))? || was_referred)
                };
                let removed = remove().inspect_err(|_: &Error| left.add(size, false))?;
                // The file is removed before its index entry, because a stale entry does no harm. A
                // writer that adds the blob again waits for the lock, and then describes it anew.
                self.0.index.remove_blob(digest);
                Ok(removed.then_some(size))
            }
        }
    }

    /// Passes the digests of all blobs on the disk to `each`, folder by folder: a store may have
    /// more of them than fit into memory. Returns the errors of folders that cannot be read.
    pub(crate) fn each_blob(&self, each: impl FnMut(Digest)) -> Vec<Error> {
        each_in_shelves(&self.0.layout.blobs(), each)
    }
}

fn fate(digest: &Digest, marked: &Marked, promises: &Promised, collection_lock: &LockState, now: SystemTime) -> Fate {
    let promised = |places: &Places| places.values().any(|until| *until > now);
    if marked.reachable.contains(digest) || promises.get(digest).is_some_and(promised) {
        return Fate::Stays;
    }
    // `LeadsTo::Documents` cannot hide references to blobs: all documents are marked.
    let unknown = marked.obstacles.iter().any(|obstacle| obstacle.leads_to == LeadsTo::Anything);
    match collection_lock.keeps(digest) {
        used if used || unknown => Fate::PutOff { used },
        _ => Fate::Goes,
    }
}
