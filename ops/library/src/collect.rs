//! Garbage collection: deletes blobs that no model needs.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use store::{Collectable, Collected, Needed, PutOff};

use crate::collections::Left;
use crate::error::Error;
use crate::library::Library;

/// Uploads and other ingests without a write for this long are abandoned.
const ABANDONED: Duration = Duration::from_hours(24);

/// Name prefix of the ingests of imports. They cannot be resumed, so they are removed when a daemon
/// starts.
pub const IMPORT_INGESTS: &str = "import-";

/// Returns the references of a manifest, in the store's types.
fn children(raw: &[u8]) -> Result<store::Children, String> {
    let found = manifests::Document::parse(raw).map_err(|e| e.to_string())?.children();
    Ok(store::Children { documents: found.manifests, blobs: found.blobs })
}

impl Library {
    /// Deletes unreferenced blobs: immediately, or soon in a store of many models
    /// ([`attend_to_collections`](Self::attend_to_collections)). A failure is logged; an
    /// unreferenced blob that stays does no harm.
    pub fn collect(&self) {
        self.collections.request(|| self.gc_and_log());
    }

    /// Runs a collection that [`collect`](Self::collect) has deferred. The owner of the daemon's
    /// background tasks calls this regularly.
    pub fn attend_to_collections(&self) {
        self.collections.attend(|| self.gc_and_log());
    }

    /// Returns the free bytes on the disk. If they are fewer than `bytes`, a deferred collection
    /// runs first.
    ///
    /// # Errors
    /// The file system does not report its free space.
    pub fn room_for(&self, bytes: u64) -> Result<u64, store::Error> {
        let free = self.store.free_space()?;
        if free >= bytes {
            return Ok(free);
        }
        self.collections.hurry(|| self.gc_and_log());
        self.store.free_space()
    }

    /// Checks that `needed` bytes are free; `what` names their purpose in the error.
    ///
    /// # Errors
    /// [`Error::NoRoom`](crate::Error::NoRoom), or the file system does not report its free space.
    pub fn ensure_room(&self, needed: u64, what: &str) -> content::operation::Result<()> {
        let free = self.room_for(needed)?;
        if needed > free {
            let home = self.store.home().to_owned();
            content::bail!(Error::NoRoom { what: what.to_owned(), needed, home, free });
        }
        Ok(())
    }

    /// Returns the bytes of all blobs in the store.
    pub fn stored_bytes(&self) -> u64 {
        self.store.blobs().totals().1
    }

    fn gc_and_log(&self) -> Left {
        let Collected { blobs, bytes, put_off, .. } = self.gc();
        let left = if put_off.as_ref().is_some_and(|put_off| put_off.in_use) { Left::Used } else { Left::Nothing };
        if blobs > 0 {
            tracing::info!(blobs, bytes, "deleted unreferenced blobs");
        }
        match put_off {
            None => {}
            Some(PutOff { blobs, bytes, reasons, .. }) if reasons.is_empty() => {
                tracing::info!(blobs, bytes, "some unreferenced blobs are in use; a later collection deletes them");
            }
            Some(PutOff { blobs, bytes, reasons, .. }) => {
                tracing::warn!(blobs, bytes, "a collection kept blobs that may be needed: {}", reasons.join("; "));
            }
        }
        left
    }

    /// Deletes unreferenced blobs.
    pub fn gc(&self) -> Collected {
        let documents = Cell::new(0);
        let collected = self.store.collect(SystemTime::now(), |raw| {
            documents.set(documents.get() + 1);
            children(raw)
        });
        self.collections.saw(documents.get());
        self.discard_failed_imports();
        self.expire_token_tables();
        if let Err(error) = self.store.notes().expire_uses() {
            tracing::warn!("cannot delete the last-used times of removed models: {error}");
        }
        collected
    }

    /// Returns what a collection would delete now.
    pub fn collectable(&self) -> Collectable {
        self.store.collectable(SystemTime::now(), children)
    }

    /// Returns the blobs that a collection would keep now.
    ///
    /// # Errors
    /// A file cannot be read that may refer to any blob.
    pub fn needed_blobs(&self) -> Result<Needed, store::Error> {
        self.store.needed(SystemTime::now(), children)
    }

    /// Removes abandoned ingests and then unreferenced blobs, including blobs that registry clients
    /// deleted.
    pub fn sweep(&self) {
        match self.store.blobs().expire_ingests(ABANDONED, SystemTime::now()) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed abandoned ingests"),
            Err(error) => tracing::warn!("cannot remove abandoned ingests: {error}"),
        }
        self.gc_and_log();
    }

    /// Cleans up after earlier processes: removes ingests that cannot be resumed.
    pub fn tidy(&self) {
        if self.store.is_read_only() {
            return;
        }
        self.discard_failed_imports();
    }

    /// Removes ingests that cannot be resumed, unless a process writes to them. A process whose
    /// disk failed cannot remove its own ingests.
    pub fn discard_failed_imports(&self) {
        if let Err(error) = self.store.blobs().discard_dead_ingests(IMPORT_INGESTS) {
            tracing::warn!("cannot remove ingests of interrupted imports: {error}");
        }
    }
}
