//! Times of last use of models: an empty file `used/<algorithm>-<hex>` for each manifest digest.
//! The time of the file is the time of last use. The time of `used/since-<hex>` is that of the
//! first retention of the repository whose name has this SHA-256 digest.
//!
//! These times cannot be derived again, and unused models may be pruned. So they are files, and not
//! notes of the index.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use content::Digest;

use crate::{Error, Notes, Store, files};

impl Notes<'_> {
    /// Records a use of the model of a document. A power cut may lose the last half minute.
    pub fn record_use(&self, document: &Digest, now: SystemTime) -> Result<(), Error> {
        // In case the folder could not be created when the store was opened.
        self.0.begin_uses(now)?;
        note(&self.0.use_path(document), now)
    }

    /// The time of the last use of the model of a document; `None` if no use was recorded.
    pub fn last_use(&self, document: &Digest) -> Result<Option<SystemTime>, Error> {
        let path = self.0.use_path(document);
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(time) => Ok(Some(time)),
            // Without the folder no use could be recorded, so no model may count as unused.
            Err(_) if !self.0.0.layout.used().is_dir() => Ok(Some(SystemTime::now())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// The time of the first call for a repository.
    pub fn uses_since(&self, repository: &str, now: SystemTime) -> Result<SystemTime, Error> {
        self.0.begin_uses(now)?;
        let path = self.0.0.layout.used().join(format!("since-{}", Digest::of(repository.as_bytes()).hex()));
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(time) => Ok(time),
            Err(e) if e.kind() == io::ErrorKind::NotFound => note(&path, now).map(|()| now),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Forgets the use of documents that no longer exist.
    pub fn expire_uses(&self) -> Result<(), Error> {
        for entry in files::entries_if_there(&self.0.0.layout.used())? {
            let document = files::named_digest(&entry.file_name().to_string_lossy());
            if document.is_some_and(|digest| matches!(self.0.blobs().size(&digest), Ok(None))) {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl Store {
    /// Creates the folder. A store may lack it: an older version kept these times in another place,
    /// and a read-only store gets a new folder for each process. All its documents then count as
    /// used now, so that no model is taken for unused by mistake.
    pub(crate) fn begin_uses(&self, now: SystemTime) -> Result<(), Error> {
        if self.0.layout.used().is_dir() {
            return Ok(());
        }
        let _names = self.lock_names();
        if self.0.layout.used().is_dir() {
            return Ok(());
        }
        // A rename makes the folder visible only when it is complete.
        let new = self.0.layout.temporary().join("used");
        files::create_folder(&new)?;
        for document in self.notes().documents() {
            note(&new.join(files::digest_name(&document)), now)?;
        }
        fs::rename(&new, self.0.layout.used()).map_err(|e| Error::io("make the folder", &self.0.layout.used(), e))?;
        if self.is_read_only() {
            // The folder is temporary and belongs to this process.
            return Ok(());
        }
        self.0.pending_renames.sync(self.home())
    }

    fn use_path(&self, document: &Digest) -> PathBuf {
        self.0.layout.used().join(files::digest_name(document))
    }
}

fn note(path: &Path, now: SystemTime) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| file.set_modified(now)).map_err(|e| Error::io("note the use in", path, e))
}
