//! Where things are in the folder of a store. Every path is made from typed names, so none can leave the folder.

use std::path::{Path, PathBuf};

use content::{Algorithm, Digest, IngestId};

use crate::{Error, files};

/// The file that says which format a store has.
pub(crate) const VERSION: &str = "version";
/// What users typed in `lode run`: commands write it, beside the store.
const PROMPTS: &str = "prompts";

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    home: PathBuf,
    /// The folder of the index, derived files and times of use: `home`, or for a read-only store a folder of this process.
    notes: PathBuf,
}

impl Layout {
    /// The layout of a store that is there, without touching it.
    pub(crate) fn of(home: &Path) -> Self {
        Self { home: home.to_owned(), notes: home.to_owned() }
    }

    /// The layout of a store that is there and cannot be written. `notes` is an empty folder.
    pub(crate) fn read_only(home: &Path, notes: &Path) -> Result<Self, Error> {
        let home = home.canonicalize().map_err(|e| Error::io("find", home, e))?;
        let layout = Self { home, notes: notes.to_owned() };
        files::create_folder(&layout.temporary())?;
        Ok(layout)
    }

    /// The layout at `home`, whose folders are made where they are not there; says whether there was no store yet.
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
        layout.create_shelves()?;
        files::sync_folder(&layout.home)?;
        Ok((layout, is_new))
    }

    /// Moves the file of `lode run`'s prompts out of the way: version 0.1 kept it where the folder of histories belongs.
    fn move_prompts(&self) -> Result<(), Error> {
        let (from, to) = (self.histories(), self.home.join(PROMPTS));
        if !std::fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
            return Ok(());
        }
        let to = if to.exists() { to.with_added_extension("old") } else { to };
        match std::fs::rename(&from, &to) {
            // Another process was first.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|error| Error::io("move", &from, error)),
        }
    }

    /// Makes all folders that blobs by SHA-256 can be in at once: made one by one, each would have to be synced in a commit.
    fn create_shelves(&self) -> Result<(), Error> {
        let folder = self.blobs().join(Algorithm::Sha256.name());
        let shelves = (0..=u8::MAX).map(|prefix| folder.join(format!("{prefix:02x}")));
        // Copies of a store may lack those that were empty.
        let missing: Vec<PathBuf> = shelves.filter(|shelf| !shelf.is_dir()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for shelf in missing {
            files::create_folder(&shelf)?;
        }
        files::sync_folder(&folder)?;
        files::sync_folder(&self.blobs())
    }

    /// Makes a folder of blobs by another algorithm, durably, also where somebody else has just made it.
    pub(crate) fn create_rare_shelf(&self, folder: &Path) -> Result<(), Error> {
        files::create_folder(folder)?;
        for above in folder.ancestors().skip(1).take_while(|above| *above != self.home) {
            files::sync_folder(above)?;
        }
        Ok(())
    }

    /// Syncs the folders that things get their names in: what the last process renamed and could not sync is durable then. Gives those
    /// with blobs that could not be synced. Of names it does not matter: the last process did not acknowledge what it had not synced.
    pub(crate) fn sync_names(&self) -> Vec<PathBuf> {
        for root in [self.tags(), self.links(), self.histories(), self.pins(), self.leases()] {
            let _ = files::sync_folders(&root);
        }
        files::sync_folders(&self.blobs())
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
        let hex = digest.hex();
        self.blobs().join(digest.algorithm().name()).join(&hex[..2]).join(hex)
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

    /// Blobs that were found damaged and taken out of sight.
    pub(crate) fn damaged(&self) -> PathBuf {
        self.home.join("damaged")
    }

    /// Files that are made again where they are not there.
    pub(crate) fn derived(&self) -> PathBuf {
        self.notes.join("derived")
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.home.join("leases")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.notes.join("index")
    }

    /// Notes that were written since the index was opened.
    pub(crate) fn index_journal(&self) -> PathBuf {
        self.notes.join("index.journal")
    }

    /// A digest of the files of the index, while nobody has it open.
    pub(crate) fn index_seal(&self) -> PathBuf {
        self.notes.join("index.seal")
    }

    /// When models were last used.
    pub(crate) fn used(&self) -> PathBuf {
        self.notes.join("used")
    }

    /// Files on their way to a tag, a history, a pin, a lease, a seal or a derived file; nothing in it outlives a crash.
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
