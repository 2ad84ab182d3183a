//! When models were last used: `used/<algorithm>-<hex>` each, an empty file whose time says it. By the digest of the manifest.
//!
//! It is known from nowhere else, and models that seem to be unused can be pruned: so it is no note of the index.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use content::Digest;

use crate::{Error, Store, files};

impl Store {
    /// Remembers that somebody used what a document describes. A power cut may take the last half minute of it.
    pub fn record_use(&self, document: &Digest, now: SystemTime) -> Result<(), Error> {
        let path = self.use_path(document);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        file.and_then(|file| file.set_modified(now)).map_err(|e| Error::io("note the use in", &path, e))
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
        files::create_folder(&self.0.layout.used())?;
        for document in self.documents() {
            self.record_use(&document, now)?;
        }
        files::sync_folder(self.home())
    }

    /// Forgets the use of what is not here any more.
    pub fn expire_uses(&self) -> Result<(), Error> {
        for entry in files::entries(&self.0.layout.used())? {
            let name = entry.file_name().to_string_lossy().replacen('-', ":", 1);
            let is_gone = |digest: Digest| Ok::<_, Error>(self.look(&digest)?.is_none());
            if name.parse().is_ok_and(|digest| is_gone(digest).unwrap_or(false)) {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn use_path(&self, document: &Digest) -> PathBuf {
        self.0.layout.used().join(format!("{}-{}", document.algorithm().name(), document.hex()))
    }
}
