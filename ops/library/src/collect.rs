//! Deleting what no model needs.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use store::{Collectable, Collected, PutOff};

use crate::collections::Left;
use crate::error::Error;
use crate::library::Library;

/// Uploads and other ingests that nobody went on with for so long are given up.
const ABANDONED: Duration = Duration::from_hours(24);

/// How ingests of imports are called. They cannot be resumed, so they are removed when a daemon starts.
pub const IMPORT_INGESTS: &str = "import-";

/// What a manifest refers to, in the store's words.
fn children(raw: &[u8]) -> Result<store::Children, String> {
    let found = manifests::Document::parse(raw).map_err(|e| e.to_string())?.children();
    Ok(store::Children { documents: found.manifests, blobs: found.blobs })
}

impl Library {
    /// Deletes unreferenced blobs: now, or in a store of many models soon ([`attend_to_collections`](Self::attend_to_collections)). A
    /// failure is logged: nothing is lost by keeping too much.
    pub fn collect(&self) {
        self.collections.request(|| self.gc_and_log());
    }

    /// Deletes what [`collect`](Self::collect) has left for later. Whoever owns the daemon's background calls it now and then.
    pub fn attend_to_collections(&self) {
        self.collections.attend(|| self.gc_and_log());
    }

    /// Bytes that are free for something that needs so many. Where there are not enough, what was left for later is deleted first.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn room_for(&self, bytes: u64) -> Result<u64, store::Error> {
        let free = self.store.free_space()?;
        if free >= bytes {
            return Ok(free);
        }
        self.collections.hurry(|| self.gc_and_log());
        self.store.free_space()
    }

    /// Makes sure that there is room for something that needs so many bytes; `what` names it.
    ///
    /// # Errors
    /// [`Error::NoRoom`](crate::Error::NoRoom), or the file system does not say.
    pub fn ensure_room(&self, needed: u64, what: &str) -> anyhow::Result<()> {
        let free = self.room_for(needed)?;
        if needed > free {
            let home = self.store.home().to_owned();
            anyhow::bail!(Error::NoRoom { what: what.to_owned(), needed, home, free });
        }
        Ok(())
    }

    /// Bytes of all blobs that are here.
    pub fn stored_bytes(&self) -> u64 {
        self.store.blobs().into_iter().map(|(_, size)| size).sum()
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
                tracing::info!(blobs, bytes, "somebody uses some blobs; they are left for a later collection");
            }
            Some(PutOff { blobs, bytes, reasons, .. }) => {
                tracing::warn!(blobs, bytes, "a collection left what may be needed: {}", reasons.join("; "));
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
        if let Err(error) = self.store.expire_uses() {
            tracing::warn!("when models were used that are gone stays known: {error}");
        }
        collected
    }

    /// What a collection would delete now.
    pub fn collectable(&self) -> Collectable {
        self.store.collectable(SystemTime::now(), children)
    }

    /// Removes what nobody went on with, and what nothing needs any more: what clients of the registry deleted, too.
    pub fn sweep(&self) {
        match self.store.expire_ingests(ABANDONED, SystemTime::now()) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed abandoned ingests"),
            Err(error) => tracing::warn!("abandoned ingests stay: {error}"),
        }
        self.gc_and_log();
    }

    /// Puts right what earlier processes left: ingests that cannot be gone on with.
    pub fn tidy(&self) {
        if self.store.is_read_only() {
            return;
        }
        self.discard_failed_imports();
    }

    /// Removes ingests that cannot be gone on with, as far as nobody writes to them: what failed on a disk that allowed
    /// nothing could not remove them itself.
    pub fn discard_failed_imports(&self) {
        if let Err(error) = self.store.discard_dead_ingests(IMPORT_INGESTS) {
            tracing::warn!("ingests of interrupted imports stay: {error}");
        }
    }
}
