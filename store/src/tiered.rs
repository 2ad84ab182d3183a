//! Blobs that the tier has: a second, larger and slower place (`content::BlobTier`), to which blobs
//! go that are rarely used.
//!
//! ```text
//! tier/store                   the id of this store, which its tier records
//! tier/location                where the tier is
//! tier/blobs/sha256/ab/ab12…   the tier has the blob: its size, a line feed, its first bytes
//! tier/removed/sha256-ab12…    the tier has a blob that the store no longer needs
//! tier/damaged/sha256-ab12…    the tier has a blob whose bytes are wrong
//! ```
//! A blob exists if its file or its entry exists. The entry of a blob that turns out to be damaged
//! or lost in the tier is taken away, so the blob counts as missing and can be fetched again. An
//! entry is written after the tier has stored the blob durably, and the file is removed after that,
//! so at every moment at least one of the two places has the blob. The file may come back while the
//! entry stays; it can then be removed again without another transfer.
//!
//! The first bytes let callers read the header of a blob without the tier. All other reads copy the
//! whole blob back ([`Recall`]), because only a whole blob can be verified.
//!
//! The time of an entry is that of the last copy back, or 1970.
//!
//! Documents stay on the disk: a collection, the list of models and the index never need the tier.
//! `ops/tier` decides which blobs move.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use content::{Algorithm, Descriptor, Digest};

use crate::collection_lock::Hold;
use crate::layout::{create_rare_shelf, create_shelves};
use crate::shelves::{any_in_shelves, each_in_shelves};
use crate::sync::atomic::Ordering;
use crate::tier_entry::{move_if_there, parent, read, set_time};
use crate::{Blobs, CrashPoint, Error, Store, files};

/// Copies blobs back from the tier, for callers that block. It holds no reference that keeps the
/// store open.
pub trait Recall: fmt::Debug + Send + Sync {
    /// Copies a blob from the tier into the store. It is committed when this returns.
    ///
    /// # Errors
    /// The tier does not have the blob or cannot be read, or the store cannot be written.
    fn recall(&self, blob: &Descriptor) -> Result<(), content::Error>;

    /// The size of a blob in the tier, in bytes; `None` if the tier does not have it.
    ///
    /// # Errors
    /// The tier cannot be read.
    fn size(&self, digest: &Digest) -> Result<Option<u64>, content::Error>;
}

/// The tier of a store, once it is attached.
pub(crate) type AttachedTier = OnceLock<Arc<dyn Recall>>;

/// A blob that was opened while only the tier had it. It is copied back when bytes behind its head
/// are read.
#[derive(Debug)]
pub(crate) struct TieredBlob {
    store: Store,
    blob: Descriptor,
    head: Vec<u8>,
    copied: OnceLock<File>,
    /// Keeps entry and file until the blob is closed.
    _hold: Hold,
}

impl TieredBlob {
    pub(crate) fn size(&self) -> u64 {
        self.blob.size
    }

    /// The bytes of a range, if they are in the head.
    pub(crate) fn in_head(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.head.get(start..start.checked_add(length)?)
    }

    /// The file of the blob, which is copied back first.
    pub(crate) fn file(&self) -> Result<&File, Error> {
        if let Some(file) = self.copied.get() {
            return Ok(file);
        }
        let file = self.store.recalled(&self.blob)?;
        Ok(self.copied.get_or_init(|| file))
    }

    pub(crate) fn into_file(self) -> Result<File, Error> {
        self.file()?;
        Ok(self.copied.into_inner().expect("invariant: `file` has set it"))
    }
}

impl Store {
    /// Attaches the tier at a location.
    ///
    /// # Errors
    /// Blobs of this store are in a tier at another location, or the store cannot be written.
    pub fn attach_tier(&self, location: &str, tier: Arc<dyn Recall>) -> Result<(), Error> {
        self.ensure_writable()?;
        let file = self.0.layout.tier().join("location");
        let known = files::read_if_there(&file)?;
        let known = known.as_deref().map(str::trim);
        if let Some(other) = known.filter(|known| *known != location) {
            if self.blobs().has_any_only_in_tier()? {
                return Err(Error::TierMoved { known: other.to_owned(), new: location.to_owned() });
            }
            // Every blob is on the disk, so nothing is lost.
            for folder in [self.0.layout.tier_blobs(), self.0.layout.tier_removals(), self.0.layout.tier_damaged()] {
                files::remove_folder(&folder)?;
            }
        }
        files::create_folder_durably(&self.0.layout.tier())?;
        if known != Some(location) {
            self.write_tier_file(&file, location.as_bytes())?;
        }
        files::create_folder_durably(&self.0.layout.tier_blobs().join(Algorithm::Sha256.name()))?;
        create_shelves(&self.0.layout.tier_blobs())?;
        // A second call has no effect: a store has one tier.
        let _ = self.0.tier.set(tier);
        Ok(())
    }

    /// The id of this store, which its tier records. `new` becomes the id if there is none.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn tier_owner(&self, new: &str) -> Result<String, Error> {
        let file = self.0.layout.tier().join("store");
        if let Some(known) = files::read_if_there(&file)? {
            return Ok(known.trim().to_owned());
        }
        self.ensure_writable()?;
        files::create_folder_durably(&self.0.layout.tier())?;
        self.write_tier_file(&file, new.as_bytes()).map(|()| new.to_owned())
    }

    /// Where the tier is to which this store has moved blobs; `None` if it never had one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn tier_location(&self) -> Result<Option<String>, Error> {
        let known = files::read_if_there(&self.0.layout.tier().join("location"))?;
        Ok(known.map(|known| known.trim().to_owned()))
    }

    /// Writes a file durably, all at once. Its folder exists.
    fn write_tier_file(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let number = self.0.derivations.fetch_add(1, Ordering::Relaxed);
        let new = self.0.layout.temporary().join(format!("tier-{number}"));
        files::write_synced(&new, bytes)?;
        set_time(&new, UNIX_EPOCH)?;
        fs::rename(&new, path).map_err(|e| Error::io("write", path, e))?;
        files::sync_folder(parent(path))
    }

    /// Copies a blob back from the tier and opens its file. The caller holds the blob.
    fn recalled(&self, blob: &Descriptor) -> Result<File, Error> {
        // It may have come back since it was opened.
        if let Some(file) = self.blobs().open_file(&blob.digest)? {
            return Ok(file);
        }
        let recalled = self.attached_tier(&blob.digest)?.recall(blob);
        recalled.map_err(|source| self.recall_error(&blob.digest, source))?;
        let file = self.blobs().open_file(&blob.digest)?;
        file.ok_or_else(|| content::Error::BlobNotFound(blob.digest).into())
    }

    fn attached_tier(&self, blob: &Digest) -> Result<&Arc<dyn Recall>, Error> {
        let location = || self.tier_location().ok().flatten().unwrap_or_default();
        self.0.tier.get().ok_or_else(|| Error::NoTier { blob: *blob, location: location() })
    }

    fn recall_error(&self, blob: &Digest, source: content::Error) -> Error {
        let location = self.tier_location().ok().flatten().unwrap_or_default();
        Error::Recall { blob: *blob, location, source }
    }

    /// Opens a blob that only the tier has.
    pub(crate) fn open_tiered(&self, digest: &Digest) -> Result<Option<TieredBlob>, Error> {
        let path = self.0.layout.tier_blob(digest);
        // Held before it is read: a collection cannot remove the entry in between.
        let hold = self.hold(vec![*digest]);
        let Some((size, head)) = read(&path, true)? else { return Ok(None) };
        let blob = Descriptor::blob(*digest, size);
        Ok(Some(TieredBlob { store: self.clone(), blob, head, copied: OnceLock::new(), _hold: hold }))
    }

    /// Marks a blob of the tier for removal there. The caller holds the lock of collections.
    pub(crate) fn release_from_tier(&self, digest: &Digest) -> Result<(), Error> {
        let removals = self.0.layout.tier_removals();
        files::create_folder_durably(&removals)?;
        let entry = self.0.layout.tier_blob(digest);
        move_if_there(&entry, &removals.join(files::digest_name(digest)))?;
        self.reach(CrashPoint::TierReleased);
        Ok(())
    }

    /// The size of a blob in the tier, in bytes.
    pub(crate) fn size_there(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        self.attached_tier(digest)?.size(digest).map_err(|source| self.recall_error(digest, source))
    }
}

impl Blobs<'_> {
    /// The size of a blob in bytes, if the disk has it.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn size_on_disk(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// The size of a blob in bytes, if the tier has it.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn size_in_tier(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        Ok(read(&self.0.0.layout.tier_blob(digest), false)?.map(|(size, _)| size))
    }

    /// Records that the tier has stored a blob durably. `head` is what later reads may need without
    /// the tier: the first bytes of the blob, at most [`MAX_HEAD`]. The record is durable when this
    /// returns.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub fn record_in_tier(&self, blob: &Descriptor, head: &[u8]) -> Result<(), Error> {
        self.0.ensure_writable()?;
        self.0.reach(CrashPoint::TierPut);
        let (layout, path) = (&self.0.0.layout, self.0.0.layout.tier_blob(&blob.digest));
        create_rare_shelf(&layout.tier_blobs(), parent(&path), blob.digest.algorithm())?;
        let entry = [format!("{}\n", blob.size).as_bytes(), head].concat();
        self.0.write_tier_file(&path, &entry)?;
        files::remove(&layout.tier_damaged().join(files::digest_name(&blob.digest)))?;
        self.0.reach(CrashPoint::TierRecorded);
        Ok(())
    }

    /// Records that a blob came back from the tier, which counts as a use.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub fn record_recall(&self, digest: &Digest, now: SystemTime) -> Result<(), Error> {
        let path = self.0.0.layout.tier_blob(digest);
        match set_time(&path, now) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// When a blob last came back from the tier; `None` if it never did.
    pub fn last_recall(&self, digest: &Digest) -> Option<SystemTime> {
        let time = fs::metadata(self.0.0.layout.tier_blob(digest)).and_then(|entry| entry.modified()).ok();
        time.filter(|time| *time > UNIX_EPOCH)
    }

    /// Removes a blob from the disk that the tier has, and returns its size in bytes. Returns
    /// `None` if the tier or the disk does not have the blob, if the sizes differ, or if the blob
    /// is being added or read, or belongs to a loaded model ([`Store::hold_on_disk`]).
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn leave_to_tier(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        self.0.ensure_writable()?;
        let entry = self.0.0.layout.tier_blob(digest);
        if !files::is_there(&entry)? {
            return Ok(None);
        }
        // The process that wrote the entry may have been killed before it could sync the folder.
        files::sync_folder(parent(&entry))?;
        // The collector takes this lock before it removes an entry.
        let collection_lock = self.0.0.collection_lock.lock();
        let (here, there) = (self.size_on_disk(digest)?, self.size_in_tier(digest)?);
        let is_used = collection_lock.keeps(digest) || self.0.0.disk_holds.contains(digest);
        if here.is_none() || here != there || is_used {
            return Ok(None);
        }
        files::remove(&self.path(digest))?;
        self.0.reach(CrashPoint::TierLeft);
        Ok(here)
    }

    /// Forgets a blob that the tier has lost. If the disk does not have it, it is missing.
    ///
    /// # Errors
    /// The entry cannot be removed.
    pub fn forget_lost_in_tier(&self, digest: &Digest) -> Result<(), Error> {
        self.0.ensure_writable()?;
        files::remove(&self.0.0.layout.tier_blob(digest)).map(drop)
    }

    /// Forgets a blob whose bytes in the tier are wrong. If the disk does not have it, it is
    /// missing.
    ///
    /// # Errors
    /// The entry cannot be moved.
    pub fn forget_damaged_in_tier(&self, digest: &Digest) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let damaged = self.0.0.layout.tier_damaged();
        files::create_folder_durably(&damaged)?;
        move_if_there(&self.0.0.layout.tier_blob(digest), &damaged.join(files::digest_name(digest)))
    }

    /// Counts a blob as being in the tier again whose bytes were wrong, to read them once more.
    ///
    /// # Errors
    /// The entry cannot be moved.
    pub fn retry_damaged_in_tier(&self, digest: &Digest) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let damaged = self.0.0.layout.tier_damaged().join(files::digest_name(digest));
        move_if_there(&damaged, &self.0.0.layout.tier_blob(digest))
    }

    /// Forgets that the bytes of a blob in the tier were wrong: they were removed there.
    ///
    /// # Errors
    /// The entry cannot be removed.
    pub fn end_damaged_in_tier(&self, digest: &Digest) -> Result<(), Error> {
        files::remove(&self.0.0.layout.tier_damaged().join(files::digest_name(digest))).map(drop)
    }

    /// Whether the bytes of a blob in the tier were found to be wrong.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn is_damaged_in_tier(&self, digest: &Digest) -> Result<bool, Error> {
        files::is_there(&self.0.0.layout.tier_damaged().join(files::digest_name(digest)))
    }

    /// Passes each blob of the tier to `each`, with its size in bytes. Returns the errors of
    /// folders and entries that cannot be read.
    pub fn each_in_tier(&self, mut each: impl FnMut(Digest, u64)) -> Vec<Error> {
        let mut damaged = Vec::new();
        let unreadable = each_in_shelves(&self.0.0.layout.tier_blobs(), |digest| match self.size_in_tier(&digest) {
            Ok(Some(size)) => each(digest, size),
            // It was removed since the folder was listed.
            Ok(None) => {}
            Err(error) => damaged.push(error),
        });
        damaged.extend(unreadable);
        damaged
    }

    /// Whether the tier should have any blob.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn has_any_in_tier(&self) -> Result<bool, Error> {
        any_in_shelves(&self.0.0.layout.tier_blobs(), |_| true)
    }

    /// Whether a blob is only in the tier.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn has_any_only_in_tier(&self) -> Result<bool, Error> {
        any_in_shelves(&self.0.0.layout.tier_blobs(), |digest| !matches!(self.size_on_disk(digest), Ok(Some(_))))
    }

    /// Passes each blob to `each` that only the tier has, with its size in bytes. Returns the
    /// errors of folders and entries that cannot be read.
    pub fn each_only_in_tier(&self, mut each: impl FnMut(Digest, u64)) -> Vec<Error> {
        self.each_in_tier(|digest, size| {
            if matches!(self.size_on_disk(&digest), Ok(None)) {
                each(digest, size);
            }
        })
    }

    /// The blobs that the tier has and the store no longer needs. After a power cut they are still
    /// unneeded: no new content can rely on them.
    ///
    /// # Errors
    /// A folder cannot be read or synced.
    pub fn tier_removals(&self) -> Result<Vec<Digest>, Error> {
        let removals = self.0.0.layout.tier_removals();
        let names = files::entries_if_there(&removals)?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        files::sync_folder(&removals)?;
        let unsynced = files::sync_folders(&self.0.0.layout.tier_blobs(), 2);
        if let Some(folder) = unsynced.first() {
            return Err(Error::io("sync the folder", folder, io::ErrorKind::Other));
        }
        Ok(names.iter().filter_map(|name| files::named_digest(&name.file_name().to_string_lossy())).collect())
    }

    /// Whether a blob is one of [`Blobs::tier_removals`].
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn is_tier_removal(&self, digest: &Digest) -> Result<bool, Error> {
        files::is_there(&self.0.0.layout.tier_removals().join(files::digest_name(digest)))
    }

    /// Forgets a blob of [`Blobs::tier_removals`], after the tier has removed it.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn end_tier_removal(&self, digest: &Digest) -> Result<(), Error> {
        files::remove(&self.0.0.layout.tier_removals().join(files::digest_name(digest))).map(drop)
    }
}
