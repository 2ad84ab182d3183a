//! Checks for damage: blobs whose bytes do not match their digest, and names that cannot be read.
//!
//! No function here deletes blobs. A damaged blob can be moved to `damaged/<hex>`, which readers do
//! not look at. It then counts as missing and can be fetched again.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::{Digest, Hasher};

use crate::layout::StoreLayout;
use crate::{BlobFile, Blobs, Error, Names, Store, files, history, leases, links, name_table, tags};

/// The kind of note with the time (Unix seconds) of the last successful check of a blob.
const NOTE: &str = "verified";
/// Bytes that are read at a time.
const PIECE: usize = 1 << 18;

/// The result of a check of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The bytes match the digest.
    Good,
    /// The blob does not exist.
    Missing,
    /// The blob lies in another file, which was changed, moved or removed: see
    /// [`Blobs::missing_reason`].
    SourceLost,
    /// Only the tier has the blob, in the expected size. Its bytes are verified when they are
    /// copied back.
    InTier,
    /// The blob is shorter or longer than expected.
    WrongSize {
        /// Its length in bytes.
        actual: u64,
    },
    /// The bytes have another digest.
    WrongBytes {
        /// The digest of the bytes.
        actual: Digest,
    },
}

impl Blobs<'_> {
    /// Reads a blob from the disk and hashes it. `size` is the expected size, if it is known.
    /// `on_bytes` is called with the number of bytes read since its last call, and returns whether
    /// to continue.
    ///
    /// # Errors
    /// [`Error::Io`] if the disk cannot read the bytes, or if `on_bytes` returned false.
    pub fn verify(
        &self,
        digest: &Digest,
        size: Option<u64>,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Verified, Error> {
        let path = self.0.blobs().path(digest);
        let Some(mut file) = self.open_file(digest)? else { return self.verify_elsewhere(digest, size, on_bytes) };
        let actual = file.metadata().map_err(|e| Error::io("look at", &path, e))?.len();
        if size.is_some_and(|size| size != actual) {
            return Ok(Verified::WrongSize { actual });
        }
        let mut hasher = Hasher::new(digest.algorithm());
        let mut buffer = vec![0; PIECE];
        loop {
            let n = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::io("read", &path, e)),
            };
            hasher.update(&buffer[..n]);
            if !on_bytes(n as u64) {
                return Err(Error::io("go on reading", &path, io::ErrorKind::Interrupted));
            }
        }
        let actual = hasher.finish();
        Ok(if actual == *digest { Verified::Good } else { Verified::WrongBytes { actual } })
    }

    /// Verifies a blob that the disk does not have.
    fn verify_elsewhere(
        self,
        digest: &Digest,
        size: Option<u64>,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Verified, Error> {
        let (opened, is_lost) = match self.open_extents(digest) {
            Err(Error::SourceLost { .. }) => (None, true),
            opened => (opened?, false),
        };
        if let Some(blob) = opened.or_else(|| self.open_in_roots(digest)) {
            match verify_open(&blob, digest, size, on_bytes) {
                Err(Error::SourceLost { .. }) => return Ok(Verified::SourceLost),
                verified => return verified,
            }
        }
        match self.verify_in_tier(digest, size)? {
            Verified::Missing if is_lost => Ok(Verified::SourceLost),
            verified => Ok(verified),
        }
    }

    /// Looks for a blob in the tier, whose copy is verified only when it comes back.
    ///
    /// # Errors
    /// The tier cannot be read.
    pub fn verify_in_tier(&self, digest: &Digest, size: Option<u64>) -> Result<Verified, Error> {
        let Some(recorded) = self.size_in_tier(digest)? else { return Ok(Verified::Missing) };
        Ok(match self.0.size_there(digest)? {
            None => Verified::Missing,
            Some(actual) if actual != size.unwrap_or(recorded) => Verified::WrongSize { actual },
            Some(_) => Verified::InTier,
        })
    }

    /// Records that a blob passed a check.
    pub fn record_verified(&self, digest: &Digest, now: SystemTime) {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        self.0.notes().set(NOTE, digest, &second.to_be_bytes());
    }

    /// Forgets the last successful check of a blob, because it is damaged now.
    pub fn forget_verified(&self, digest: &Digest) {
        self.0.0.index.remove_note(NOTE, digest);
    }

    /// The time of the last successful check of a blob; `None` if it is not known.
    pub fn last_verified(&self, digest: &Digest) -> Option<SystemTime> {
        let second =
            self.0.notes().get(NOTE, digest).and_then(|note| <[u8; 8]>::try_from(note).ok()).map(u64::from_be_bytes);
        second.and_then(|second| UNIX_EPOCH.checked_add(Duration::from_secs(second)))
    }

    /// Moves a damaged blob to `damaged/` and returns whether it existed. An earlier damaged file
    /// of the same name is replaced. The tier's copy stays. A blob that lies in another file is
    /// forgotten, if that file has not been changed: then its bytes were never right, or the disk
    /// has failed.
    pub fn set_aside(&self, digest: &Digest) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        let path = self.0.blobs().path(digest);
        files::create_folder(&self.0.0.layout.damaged())?;
        let aside = self.0.0.layout.damaged().join(digest.hex());
        // Notes and derived files may come from the damaged bytes. They are removed before the
        // move, so that a crash leaves none beside a blob that is fetched again. They are removed
        // once more after it, in case another thread was just making one. The references of a
        // document stay: they follow from its digest.
        let forget = || {
            self.0.0.index.remove_notes(digest);
            self.0.forget_derived(digest)
        };
        forget()?;
        let moved = match fs::rename(&path, &aside) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if self.size_in_files(digest)?.is_some() {
                    self.0.forget_extents(digest)?;
                }
                false
            }
            Err(e) => return Err(Error::io("set aside", &path, e)),
        };
        forget()?;
        if moved && let Some(folder) = path.parent() {
            // The target is synced first: after a power cut the blob is in at least one of the two
            // folders.
            files::sync_folder(&self.0.0.layout.damaged())?;
            self.0.0.pending_renames.sync(folder)?;
        }
        Ok(moved)
    }

    /// Removes the blob that [`Blobs::set_aside`] kept; returns whether it existed.
    pub fn discard_damaged(&self, digest: &Digest) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        files::remove(&self.0.0.layout.damaged().join(digest.hex()))
    }
}

/// Reads an open blob and hashes it.
fn verify_open(
    blob: &BlobFile,
    digest: &Digest,
    size: Option<u64>,
    on_bytes: &mut dyn FnMut(u64) -> bool,
) -> Result<Verified, Error> {
    if size.is_some_and(|size| size != blob.size()) {
        return Ok(Verified::WrongSize { actual: blob.size() });
    }
    let actual = blob.hash(digest.algorithm(), on_bytes)?;
    Ok(if actual == *digest { Verified::Good } else { Verified::WrongBytes { actual } })
}

impl Names<'_> {
    /// Errors of names that cannot be read. Each may make a collection keep more than necessary.
    pub fn damaged(&self, now: SystemTime) -> Vec<Error> {
        damaged_names(&self.0.0.layout, now)
    }
}

impl Store {
    /// [`Names::damaged`] for the store at `home`, even if another process has it open.
    /// Nothing is changed.
    pub fn damaged_names_at(home: &Path, now: SystemTime) -> Vec<Error> {
        damaged_names(&StoreLayout::of(home), now)
    }
}

fn damaged_names(layout: &StoreLayout, now: SystemTime) -> Vec<Error> {
    let tags = tags::walk(&layout.tags());
    let mut damaged: Vec<Error> = tags.damaged.into_iter().map(|(_, error)| error).chain(tags.unreadable).collect();
    let histories = name_table::walk(&layout.histories());
    damaged
        .extend(histories.named.iter().filter_map(|file| file.check().and_then(|()| history::read(&file.path)).err()));
    damaged.extend(histories.unreadable);
    damaged.extend(name_table::walk(&layout.pins()).unreadable);
    damaged.extend(links::walk(&layout.links()).unreadable.into_iter().map(|(_, error)| error));
    damaged.extend(leases::walk(&layout.leases(), now).damaged);
    damaged
}
