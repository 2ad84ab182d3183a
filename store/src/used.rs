//! When models were last used: `used/<algorithm>-<hex>` each, an empty file whose time says it. By the digest of the manifest.
//!
//! It is known from nowhere else, and models that seem to be unused can be pruned: so it is no note of the index.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use content::Digest;

use crate::{Error, Store, files};

impl Store {
    /// Remembers that somebody used what a document describes. A power cut may take the last half minute of it.
    pub fn record_use(&self, document: &Digest, now: SystemTime) -> Result<(), Error> {
        // Where the folder could not be made when the store was opened.
        self.begin_uses(now)?;
        note(&self.use_path(document), now)
    }

    /// When somebody last used what a document describes; `None` where that was never noted.
    pub fn last_use(&self, document: &Digest) -> Result<Option<SystemTime>, Error> {
        let path = self.use_path(document);
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(time) => Ok(Some(time)),
            // Nothing could be noted so far: nothing counts as unused.
            Err(_) if !self.0.layout.used().is_dir() => Ok(Some(SystemTime::now())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Makes the folder. A store without it noted uses elsewhere: all that it has counts as used now, so that nothing is
    /// taken to be unused that is not.
    pub(crate) fn begin_uses(&self, now: SystemTime) -> Result<(), Error> {
        if self.0.layout.used().is_dir() {
            return Ok(());
        }
        let _names = self.names();
        if self.0.layout.used().is_dir() {
            return Ok(());
        }
        // It is there when all of it is.
        let new = self.0.layout.temporary().join("used");
        files::create_folder(&new)?;
        for document in self.documents() {
            note(&new.join(files::digest_name(&document)), now)?;
        }
        fs::rename(&new, self.0.layout.used()).map_err(|e| Error::io("make the folder", &self.0.layout.used(), e))?;
        if self.is_read_only() {
            // It is elsewhere, and for this process only.
            return Ok(());
        }
        self.0.placing.sync(self.home())
    }

    /// Forgets the use of what is not here any more.
    pub fn expire_uses(&self) -> Result<(), Error> {
        for entry in files::entries_if_there(&self.0.layout.used())? {
            let document = files::named_digest(&entry.file_name().to_string_lossy());
            if document.is_some_and(|digest| matches!(self.look(&digest), Ok(None))) {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn use_path(&self, document: &Digest) -> PathBuf {
        self.0.layout.used().join(files::digest_name(document))
    }
}

fn note(path: &Path, now: SystemTime) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| file.set_modified(now)).map_err(|e| Error::io("note the use in", path, e))
}
