//! Tracks blobs that have been renamed but whose folder may not be synced yet. Readers see such a
//! blob, but a power cut could remove it.
//!
//! The writer of a blob waits for the sync anyway. A caller that finds the blob meanwhile and
//! writes a name that refers to it must wait too, before the name is acknowledged. A folder that
//! failed to sync is synced again before the next name is acknowledged. While that fails, no tag,
//! lease or manifest link is acknowledged, because its blobs may be in that folder. A link of a
//! blob waits for the folders of that blob only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use content::Digest;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::{Error, Store, files};

#[derive(Debug, Default)]
pub(crate) struct PendingRenames {
    state: Mutex<RenameState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct RenameState {
    next: u64,
    under_way: BTreeMap<u64, Digest>,
    /// Folders that could not be synced.
    failed: BTreeSet<PathBuf>,
}

/// A rename of a blob that is in progress. It also ends if the rename fails.
#[must_use = "others wait while this lives"]
pub(crate) struct PendingRename<'a> {
    pending_renames: &'a PendingRenames,
    number: u64,
}

impl Drop for PendingRename<'_> {
    fn drop(&mut self) {
        self.pending_renames.lock().under_way.remove(&self.number);
        self.pending_renames.ended.notify_all();
    }
}

impl PendingRenames {
    fn lock(&self) -> MutexGuard<'_, RenameState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, digest: &Digest) -> PendingRename<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, *digest);
        PendingRename { pending_renames: self, number }
    }

    /// Syncs a folder. If that fails, the folder is remembered.
    pub(crate) fn sync(&self, folder: &Path) -> Result<(), Error> {
        files::sync_folder(folder).inspect_err(|_| {
            self.lock().failed.insert(folder.to_owned());
        })
    }

    /// Marks folders as not durable: they could not be synced.
    pub(crate) fn mark_unsynced(&self, folders: Vec<PathBuf>) {
        self.lock().failed.extend(folders);
    }

    /// Whether no folder is waiting to be synced again.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().failed.is_empty()
    }

    fn wait(&self, is_awaited: impl Fn(&RenameState) -> bool) {
        let state = self.ended.wait_while(self.lock(), |state| is_awaited(state));
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    /// Syncs the failed folders that `is_wanted` selects again.
    fn retry(&self, is_wanted: impl Fn(&Path) -> bool) -> Result<(), Error> {
        let folders: Vec<PathBuf> = self.lock().failed.iter().filter(|folder| is_wanted(folder)).cloned().collect();
        for folder in folders {
            match files::sync_folder(&folder) {
                // The folder was removed. Syncing its parent makes the removal durable.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
            self.lock().failed.remove(&folder);
        }
        Ok(())
    }
}

impl Store {
    /// Creates a folder and its missing ancestors up to the store's folder, each durable in its
    /// parent. The caller holds the lock of names.
    pub(crate) fn create_folder_durably(&self, folder: &Path) -> Result<(), Error> {
        if folder.is_dir() {
            // The sync of this folder or of an ancestor may have failed when it was created.
            return self.0.pending_renames.retry(|failed| folder.starts_with(failed));
        }
        if let Some(parent) = folder.parent().filter(|_| folder != self.home()) {
            self.create_folder_durably(parent)?;
            files::create_folder(folder)?;
            self.0.pending_renames.sync(parent)?;
        }
        Ok(())
    }

    /// Waits until every blob that is visible now is durable.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        let pending_renames = &self.0.pending_renames;
        let now = pending_renames.lock().next;
        pending_renames.wait(|state| state.under_way.keys().next().is_some_and(|oldest| *oldest < now));
        pending_renames.retry(|_| true)
    }

    /// Waits for a name that is being written or removed, then makes all name changes so far
    /// durable.
    pub(crate) fn settle_names(&self) -> Result<(), Error> {
        drop(self.lock_names());
        self.0.pending_renames.retry(|_| true)
    }

    /// [`Store::settle_names`] for the folders that contain one file.
    pub(crate) fn settle_folders(&self, path: &Path) -> Result<(), Error> {
        drop(self.lock_names());
        self.0.pending_renames.retry(|failed| path.starts_with(failed))
    }

    /// [`Store::settle`] for one blob.
    pub(crate) fn settle_blob(&self, digest: &Digest) -> Result<(), Error> {
        let pending_renames = &self.0.pending_renames;
        pending_renames.wait(|state| state.under_way.values().any(|placed| placed == digest));
        let path = self.blobs().path(digest);
        pending_renames.retry(|folder| path.starts_with(folder))
    }
}
