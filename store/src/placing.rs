//! Blobs that have their name and whose folder may not be synced yet: others see them, but a power cut could take them.
//!
//! Who commits a blob waits for the sync anyway. Who finds it here meanwhile and makes something refer to it must wait, too,
//! before that is acknowledged. A folder that could not be synced is synced again before the next name is acknowledged; while
//! that fails, no name is, whichever it is: what it refers to may be in that folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use content::Digest;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::{Error, Store, files};

#[derive(Debug, Default)]
pub(crate) struct Placing {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeMap<u64, Digest>,
    /// Folders that could not be synced.
    failed: BTreeSet<PathBuf>,
}

/// A blob that is getting its name; it ends also where that fails.
#[must_use = "others wait while this lives"]
pub(crate) struct Placement<'a> {
    placing: &'a Placing,
    number: u64,
}

impl Drop for Placement<'_> {
    fn drop(&mut self) {
        self.placing.lock().under_way.remove(&self.number);
        self.placing.ended.notify_all();
    }
}

impl Placing {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, digest: &Digest) -> Placement<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, *digest);
        Placement { placing: self, number }
    }

    /// Syncs a folder; one that could not be synced is remembered.
    pub(crate) fn sync(&self, folder: &Path) -> Result<(), Error> {
        files::sync_folder(folder).inspect_err(|_| {
            self.lock().failed.insert(folder.to_owned());
        })
    }

    /// What is in these folders is not durable: they could not be synced.
    pub(crate) fn mistrust(&self, folders: Vec<PathBuf>) {
        self.lock().failed.extend(folders);
    }

    /// Whether no folder failed to be synced.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().failed.is_empty()
    }

    fn wait(&self, is_awaited: impl Fn(&State) -> bool) {
        let state = self.ended.wait_while(self.lock(), |state| is_awaited(state));
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    /// Syncs again what could not be synced.
    fn retry(&self, is_wanted: impl Fn(&Path) -> bool) -> Result<(), Error> {
        let folders: Vec<PathBuf> = self.lock().failed.iter().filter(|folder| is_wanted(folder)).cloned().collect();
        for folder in folders {
            match files::sync_folder(&folder) {
                // Its removal is the affair of the folder above.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
            self.lock().failed.remove(&folder);
        }
        Ok(())
    }
}

impl Store {
    /// Makes a folder and those above it up to the store's, each durable in the one above. The caller holds the lock of names.
    pub(crate) fn create_folder_durably(&self, folder: &Path) -> Result<(), Error> {
        if folder.is_dir() {
            // Where one of them could not be synced when it was made.
            return self.0.placing.retry(|failed| folder.starts_with(failed));
        }
        if let Some(parent) = folder.parent().filter(|_| folder != self.home()) {
            self.create_folder_durably(parent)?;
            files::create_folder(folder)?;
            self.0.placing.sync(parent)?;
        }
        Ok(())
    }

    /// Returns when every blob that can be seen now would survive a power cut.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        let placing = &self.0.placing;
        let now = placing.lock().next;
        placing.wait(|state| state.under_way.keys().next().is_some_and(|oldest| *oldest < now));
        placing.retry(|_| true)
    }

    /// Returns when no name is being given or taken away, and every one that was would be so after a power cut.
    pub(crate) fn settle_names(&self) -> Result<(), Error> {
        drop(self.names());
        self.0.placing.retry(|_| true)
    }

    /// The same for the folders that a file lies in.
    pub(crate) fn settle_folders(&self, path: &Path) -> Result<(), Error> {
        drop(self.names());
        self.0.placing.retry(|failed| path.starts_with(failed))
    }

    /// The same for one blob.
    pub(crate) fn settle_blob(&self, digest: &Digest) -> Result<(), Error> {
        let placing = &self.0.placing;
        placing.wait(|state| state.under_way.values().any(|placed| placed == digest));
        let path = self.path(digest);
        placing.retry(|folder| path.starts_with(folder))
    }
}
