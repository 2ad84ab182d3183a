//! Blobs that the tier has: a second, larger and slower place (`content::BlobTier`), to which blobs
//! go that are rarely used.
//!
//! ```text
//! tier/store                   the id of this store, which its tier records
//! tier/location                where the tier is
//! tier/blobs/sha256/ab/ab12…   the tier has the blob: its size, a line feed, its first bytes
//! tier/removed/sha256-ab12…    the tier has a blob that the store no longer needs
//! ```
//! A blob exists if its file or its entry exists. An entry is written after the tier has stored the
//! blob durably, and the file is removed after that, so at every moment at least one of the two
//! places has the blob. The file may come back while the entry stays; it can then be removed again
//! without another transfer.
//!
//! The first bytes let callers read the header of a blob without the tier. All other reads copy the
//! whole blob back ([`Recall`]), because only a whole blob can be verified.
//!
//! Documents stay on the disk: a collection, the list of models and the index never need the tier.
//! The mover (`ops/tier`) moves only blobs that no document refers to as a document.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use content::{Descriptor, Digest};

use crate::collection_lock::Hold;
use crate::sync::atomic::Ordering;
use crate::{Blobs, Error, Store, files};

/// Maximum number of the first bytes of a blob in an entry.
pub const MAX_HEAD: u64 = 1 << 20;

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
            let mut only_there = 0;
            self.blobs().each_only_in_tier(|_, _| only_there += 1)?;
            if only_there > 0 {
                let (known, new) = (other.to_owned(), location.to_owned());
                return Err(Error::TierMoved { known, new, blobs: only_there });
            }
            // Every blob is on the disk, so nothing is lost.
            files::remove_folder(&self.0.layout.tier_blobs())?;
            files::remove_folder(&self.0.layout.tier_removals())?;
        }
        if known != Some(location) {
            self.write_tier_file(&file, location.as_bytes())?;
        }
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

    /// Writes a file durably, all at once.
    fn write_tier_file(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let folder = path.parent().expect("invariant: the file is below the folder of the tier");
        files::create_folder_durably(folder)?;
        let number = self.0.derivations.fetch_add(1, Ordering::Relaxed);
        let new = self.0.layout.temporary().join(format!("tier-{number}"));
        files::write_synced(&new, bytes)?;
        fs::rename(&new, path).map_err(|e| Error::io("write", path, e))?;
        files::sync_folder(folder)
    }

    /// Copies a blob back from the tier and opens its file. The caller holds the blob.
    fn recalled(&self, blob: &Descriptor) -> Result<File, Error> {
        let location = || self.tier_location().ok().flatten().unwrap_or_default();
        let Some(tier) = self.0.tier.get() else {
            return Err(Error::NoTier { blob: blob.digest, location: location() });
        };
        tier.recall(blob).map_err(|source| Error::Recall { blob: blob.digest, location: location(), source })?;
        let file = self.blobs().open_file(&blob.digest)?;
        file.ok_or_else(|| content::Error::BlobNotFound(blob.digest).into())
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
        let from = self.0.layout.tier_blob(digest);
        let removals = self.0.layout.tier_removals();
        files::create_folder_durably(&removals)?;
        let to = removals.join(files::digest_name(digest));
        match fs::rename(&from, &to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("move", &from, e)),
            _ => Ok(()),
        }
    }

    /// Compares a blob of the tier with its entry.
    pub(crate) fn check_in_tier(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let location = || self.tier_location().ok().flatten().unwrap_or_default();
        let tier = self.0.tier.get().ok_or_else(|| Error::NoTier { blob: *digest, location: location() })?;
        tier.size(digest).map_err(|source| Error::Recall { blob: *digest, location: location(), source })
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
        let entry = [format!("{}\n", blob.size).as_bytes(), head].concat();
        self.0.write_tier_file(&self.0.0.layout.tier_blob(&blob.digest), &entry)
    }

    /// Removes a blob from the disk that the tier has, and returns its size in bytes. Returns
    /// `None` if the tier or the disk does not have the blob, if the sizes differ, or if the blob
    /// is being added or read.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn leave_to_tier(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        self.0.ensure_writable()?;
        // The collector takes this lock before it removes an entry.
        let collection_lock = self.0.0.collection_lock.lock();
        let (here, there) = (self.size_on_disk(digest)?, self.size_in_tier(digest)?);
        if here.is_none() || here != there || collection_lock.keeps(digest) {
            return Ok(None);
        }
        files::remove(&self.path(digest))?;
        Ok(here)
    }

    /// Forgets that the tier has a blob. If the tier has it, it is removed there later.
    ///
    /// # Errors
    /// The entry cannot be moved.
    pub fn forget_in_tier(&self, digest: &Digest) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let _collection_lock = self.0.0.collection_lock.lock();
        self.0.release_from_tier(digest)
    }

    /// Passes each blob of the tier to `each`, with its size in bytes.
    ///
    /// # Errors
    /// A folder or an entry cannot be read.
    pub fn each_in_tier(&self, mut each: impl FnMut(Digest, u64)) -> Result<(), Error> {
        for shelf in tier_shelves(&self.0.0.layout.tier_blobs())? {
            for entry in files::entries(&shelf)? {
                let Some(digest) = shelf_digest(&shelf, &entry) else { continue };
                if let Some(size) = self.size_in_tier(&digest)? {
                    each(digest, size);
                }
            }
        }
        Ok(())
    }

    /// Whether the tier has any blob.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn has_any_in_tier(&self) -> Result<bool, Error> {
        for shelf in tier_shelves(&self.0.0.layout.tier_blobs())? {
            if !files::entries(&shelf)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Passes each blob to `each` that only the tier has, with its size in bytes.
    ///
    /// # Errors
    /// A folder or an entry cannot be read.
    pub fn each_only_in_tier(&self, mut each: impl FnMut(Digest, u64)) -> Result<(), Error> {
        let mut failed = Ok(());
        self.each_in_tier(|digest, size| match self.size_on_disk(&digest) {
            Ok(None) => each(digest, size),
            Ok(Some(_)) => {}
            Err(error) => failed = Err(error),
        })?;
        failed
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
        for shelf in tier_shelves(&self.0.0.layout.tier_blobs())? {
            files::sync_folder(&shelf)?;
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

/// The folders with entries.
pub(crate) fn tier_shelves(blobs: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut shelves = Vec::new();
    for algorithm in files::entries_if_there(blobs)? {
        shelves.extend(files::entries(&algorithm.path())?.iter().map(fs::DirEntry::path));
    }
    Ok(shelves)
}

/// The digest of an entry.
pub(crate) fn shelf_digest(shelf: &Path, entry: &fs::DirEntry) -> Option<Digest> {
    let algorithm = shelf.parent()?.file_name()?;
    format!("{}:{}", algorithm.display(), entry.file_name().display()).parse().ok()
}

/// Reads the size in an entry, and with `has_head` the first bytes of the blob; `None` if there is
/// no entry.
fn read(path: &Path, has_head: bool) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let failed = |e| Error::io("read", path, e);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut reader = BufReader::with_capacity(4096, file);
    let mut line = String::new();
    // The longest size has 20 digits.
    reader.by_ref().take(21).read_line(&mut line).map_err(failed)?;
    let size = line.strip_suffix('\n').and_then(|line| line.parse().ok());
    let size = size.ok_or_else(|| Error::Damaged {
        path: path.to_owned(),
        reason: "it does not begin with a size; remove the file, then `lode repair` fetches the blob again".to_owned(),
    })?;
    let mut head = Vec::new();
    if has_head {
        reader.take(MAX_HEAD).read_to_end(&mut head).map_err(failed)?;
    }
    Ok(Some((size, head)))
}
