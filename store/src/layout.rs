//! Paths in the folder of a store. Every path is made from typed names, so none can leave the
//! folder.

use std::path::{Path, PathBuf};

use content::{Algorithm, Digest, IngestId};

use crate::{Error, files};

/// The file with the version of the store's format.
pub(crate) const VERSION: &str = "version";
/// The history of prompts in `lode run`, which commands write beside the store.
const PROMPTS: &str = "prompts";
/// Number of folders that are synced one by one. For more, the whole file system is synced, which
/// also waits for the writes of other programs.
const MOST_SYNCED: usize = 2000;

#[derive(Clone, Debug)]
pub(crate) struct StoreLayout {
    home: PathBuf,
    /// The folder of the index, derived files and times of use. It is `home`, or a folder of this
    /// process for a read-only store.
    notes: PathBuf,
}

impl StoreLayout {
    /// The layout of an existing store. Nothing is written.
    pub(crate) fn of(home: &Path) -> Self {
        Self { home: home.to_owned(), notes: home.to_owned() }
    }

    /// The layout of an existing store that cannot be written. `notes` is an empty folder.
    pub(crate) fn read_only(home: &Path, notes: &Path) -> Result<Self, Error> {
        let home = home.canonicalize().map_err(|e| Error::io("find", home, e))?;
        let layout = Self { home, notes: notes.to_owned() };
        files::create_folder(&layout.temporary())?;
        Ok(layout)
    }

    /// The layout at `home`. Missing folders are created. Also returns whether the store is new.
    pub(crate) fn create(home: &Path) -> Result<(Self, bool), Error> {
        let home = std::path::absolute(home).map_err(|e| Error::io("find", home, e))?;
        files::create_folder_durably(&home)?;
        let home = home.canonicalize().map_err(|e| Error::io("find", &home, e))?;
        let layout = Self { notes: home.clone(), home };
        let is_new = !layout.blobs().is_dir();
        layout.move_prompts()?;
        for folder in
            [layout.blobs(), layout.ingests(), layout.tags(), layout.links(), layout.leases(), layout.temporary()]
        {
            files::create_folder(&folder)?;
        }
        create_shelves(&layout.blobs())?;
        files::sync_folder(&layout.home)?;
        Ok((layout, is_new))
    }

    /// Moves the prompt history of `lode run` to its current name: version 0.1 kept it at the path
    /// that is now the folder of tag histories.
    fn move_prompts(&self) -> Result<(), Error> {
        let (from, to) = (self.histories(), self.home.join(PROMPTS));
        if !std::fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
            return Ok(());
        }
        let to = if to.exists() { to.with_added_extension("old") } else { to };
        match std::fs::rename(&from, &to) {
            // Another process moved it first.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| Error::io("move", &from, error)),
        }
    }

    /// Syncs the folders of tags, links, histories, pins, leases and blobs. Renames that the last
    /// process could not sync are durable afterwards. Returns the blob folders that could not be
    /// synced. Failures of the other folders do not matter: the last process did not acknowledge
    /// unsynced names.
    pub(crate) fn sync_names(&self) -> Vec<PathBuf> {
        let roots = [self.tags(), self.links(), self.histories(), self.pins(), self.leases()];
        if files::are_more_than(MOST_SYNCED, &roots) {
            match roots.iter().filter(|root| root.is_dir()).try_for_each(|root| sync_file_system(root)) {
                Ok(()) => return self.sync_blobs(),
                Err(error) => tracing::warn!("{error}; the folders of the store are synced one by one"),
            }
        }
        for root in roots {
            let _ = files::sync_folders(&root, usize::MAX);
        }
        self.sync_blobs()
    }

    /// Syncs the folders of blobs and of entries. Returns the ones that could not be synced.
    fn sync_blobs(&self) -> Vec<PathBuf> {
        // An algorithm, and the first two digits of digests.
        let mut failed = files::sync_folders(&self.blobs(), 2);
        if self.extents().is_dir() {
            failed.extend(files::sync_folders(&self.extents(), 2));
        }
        failed
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn version_file(&self) -> PathBuf {
        self.home.join(VERSION)
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.home.join("lock")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.home.join("blobs")
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        shelved(&self.blobs(), digest)
    }

    pub(crate) fn ingests(&self) -> PathBuf {
        self.home.join("ingest")
    }

    pub(crate) fn ingest(&self, id: &IngestId) -> PathBuf {
        self.ingests().join(id.as_str())
    }

    pub(crate) fn tags(&self) -> PathBuf {
        self.home.join("tags")
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.home.join("links")
    }

    pub(crate) fn histories(&self) -> PathBuf {
        self.home.join("history")
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.home.join("pins")
    }

    /// Damaged blobs that were set aside.
    pub(crate) fn damaged(&self) -> PathBuf {
        self.home.join("damaged")
    }

    /// Derived files, which are made again if they are missing.
    pub(crate) fn derived(&self) -> PathBuf {
        self.notes.join("derived")
    }

    /// The store's list of its tier.
    pub(crate) fn tier(&self) -> PathBuf {
        self.home.join("tier")
    }

    /// Entries of blobs that the tier has in a damaged state.
    pub(crate) fn tier_damaged(&self) -> PathBuf {
        self.tier().join("damaged")
    }

    /// The entries of blobs that the tier has.
    pub(crate) fn tier_blobs(&self) -> PathBuf {
        self.tier().join("blobs")
    }

    pub(crate) fn tier_blob(&self, digest: &Digest) -> PathBuf {
        shelved(&self.tier_blobs(), digest)
    }

    /// Blobs that the tier has and the store no longer needs.
    pub(crate) fn tier_removals(&self) -> PathBuf {
        self.tier().join("removed")
    }

    /// The entries of blobs that lie in other files.
    pub(crate) fn extents(&self) -> PathBuf {
        self.home.join("extents")
    }

    pub(crate) fn extent_entry(&self, digest: &Digest) -> PathBuf {
        shelved(&self.extents(), digest)
    }

    /// Clones of files in which blobs lie.
    pub(crate) fn clones(&self) -> PathBuf {
        self.home.join("adopted")
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.home.join("leases")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.notes.join("index")
    }

    /// The journal of notes that were written since the index was opened.
    pub(crate) fn index_journal(&self) -> PathBuf {
        self.notes.join("index.journal")
    }

    /// A digest of the files of the index, while it is closed.
    pub(crate) fn index_seal(&self) -> PathBuf {
        self.notes.join("index.seal")
    }

    /// Times at which models were last used.
    pub(crate) fn used(&self) -> PathBuf {
        self.notes.join("used")
    }

    /// Temporary files of tags, histories, pins, leases, seals and derived files. It is emptied at
    /// the next start.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.notes.join("tmp")
    }

    pub(crate) fn clear_temporary(&self) -> Result<(), Error> {
        for entry in files::entries(&self.temporary())? {
            if let Err(error) = files::remove_any(&entry.path()) {
                tracing::warn!("a temporary file stays: {error}");
            }
        }
        Ok(())
    }
}

/// Creates all folders for SHA-256 blobs below a folder of blobs in advance. A commit would have to
/// sync each new one.
pub(crate) fn create_shelves(blobs: &Path) -> Result<(), Error> {
    let folder = blobs.join(Algorithm::Sha256.name());
    let shelves = (0..=u8::MAX).map(|prefix| folder.join(format!("{prefix:02x}")));
    // Copies of a store may lack empty folders.
    let missing: Vec<PathBuf> = shelves.filter(|shelf| !shelf.is_dir()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for shelf in missing {
        files::create_folder(&shelf)?;
    }
    files::sync_folder(&folder)?;
    files::sync_folder(blobs)
}

/// Creates a folder for blobs of another hash function below a folder of blobs, durably even if
/// another thread has just made it. Those of SHA-256 exist already.
pub(crate) fn create_rare_shelf(blobs: &Path, shelf: &Path, algorithm: Algorithm) -> Result<(), Error> {
    if algorithm == Algorithm::Sha256 {
        return Ok(());
    }
    files::create_folder(shelf)?;
    for above in shelf.ancestors().skip(1).take_while(|above| above.starts_with(blobs)) {
        files::sync_folder(above)?;
    }
    Ok(())
}

/// The path of a blob below a folder of blobs.
pub(crate) fn shelved(blobs: &Path, digest: &Digest) -> PathBuf {
    let hex = digest.hex();
    blobs.join(digest.algorithm().name()).join(&hex[..2]).join(hex)
}

/// Syncs the whole file system of a folder.
#[cfg(target_os = "linux")]
fn sync_file_system(folder: &Path) -> Result<(), Error> {
    let failed = |e| Error::io("sync the file system of", folder, e);
    let open = std::fs::File::open(folder).map_err(failed)?;
    rustix::fs::syncfs(open).map_err(|e| failed(e.into()))
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
fn sync_file_system(folder: &Path) -> Result<(), Error> {
    Err(Error::io("sync the file system of", folder, std::io::ErrorKind::Unsupported.into()))
}
