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
        note(&self.use_path(document), now)
    }

    /// When somebody last used what a document describes; `None` where that was never noted.
    pub fn last_use(&self, document: &Digest) -> Result<Option<SystemTime>, Error> {
        let path = self.use_path(document);
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(time) => Ok(Some(time)),
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
        // It is there when all of it is.
        let new = self.0.layout.temporary().join("used");
        files::create_folder(&new)?;
        for document in self.documents() {
            note(&new.join(file_name(&document)), now)?;
        }
        fs::rename(&new, self.0.layout.used()).map_err(|e| Error::io("make the folder", &self.0.layout.used(), e))?;
        files::sync_folder(self.home())
    }

    /// Forgets the use of what is not here any more.
    pub fn expire_uses(&self) -> Result<(), Error> {
        for entry in files::entries(&self.0.layout.used())? {
            let name = entry.file_name().to_string_lossy().replacen('-', ":", 1);
            if name.parse().is_ok_and(|digest| matches!(self.look(&digest), Ok(None))) {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn use_path(&self, document: &Digest) -> PathBuf {
        self.0.layout.used().join(file_name(document))
    }
}

fn file_name(document: &Digest) -> String {
    format!("{}-{}", document.algorithm().name(), document.hex())
}

fn note(path: &Path, now: SystemTime) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| file.set_modified(now)).map_err(|e| Error::io("note the use in", path, e))
}
