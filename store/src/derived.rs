//! Files derived from blobs, for processes that map them. Each is
//! `derived/<algorithm>-<hex>.<version>`, under the digest of its source blob.
//!
//! Derived files are a cache. A caller that finds none makes it again, and reports of disk usage
//! leave them out. A collection removes files whose blob is gone, and files of versions that are
//! not current.

use std::path::PathBuf;

use content::Digest;

use crate::sync::atomic::Ordering;
use crate::{Error, Notes, Store, files};

impl Notes<'_> {
    /// Path of the file derived from a blob; `None` if there is none of this version.
    pub fn derived(&self, source: &Digest, version: &str) -> Option<PathBuf> {
        Some(self.0.derived_path(source, version)).filter(|path| path.is_file())
    }

    /// Stores a file derived from a blob and returns its path. The file appears atomically.
    ///
    /// # Errors
    /// The file cannot be written, for instance because the disk is full.
    pub fn set_derived(&self, source: &Digest, version: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.0.derived_path(source, version);
        files::create_folder(&self.0.0.layout.derived())?;
        // Two threads may derive the same file at a time; both results are right.
        let name = format!("derived-{}", self.0.0.derivations.fetch_add(1, Ordering::Relaxed));
        let new = self.0.0.layout.temporary().join(name);
        let put = files::write_synced(&new, bytes)
            .and_then(|()| std::fs::rename(&new, &path).map_err(|error| Error::io("write", &path, error)));
        if put.is_err() {
            // A leftover is removed at the next start. The error of the write is the one to report.
            let _ = files::remove(&new);
        }
        put.map(|()| path)
    }

    /// Removes derived files whose blob is gone, and files of all versions but the given ones.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed. The first such error is returned
    /// after all other files were tried.
    pub fn expire_derived(&self, versions: &[&str]) -> Result<(), Error> {
        let is_wanted = |name: &str| {
            let Some((source, _)) = name.split_once('.').filter(|(_, version)| versions.contains(version)) else {
                return Ok(false);
            };
            files::named_digest(source).map_or(Ok(false), |source| Ok(self.0.blobs().size(&source)?.is_some()))
        };
        self.0.remove_derived(is_wanted)
    }
}

impl Store {
    /// Removes all files derived from a blob, of any version.
    pub(crate) fn forget_derived(&self, source: &Digest) -> Result<(), Error> {
        let own = self.derived_path(source, "");
        let own = own.file_name().unwrap_or_default().to_string_lossy();
        self.remove_derived(|name| Ok(!name.starts_with(&*own)))
    }

    fn remove_derived(&self, is_wanted: impl Fn(&str) -> Result<bool, Error>) -> Result<(), Error> {
        let folder = self.0.layout.derived();
        if !folder.is_dir() {
            return Ok(());
        }
        let mut failed = Ok(());
        for entry in files::entries(&folder)? {
            let name = entry.file_name();
            let kept = name.to_str().map_or(Ok(false), &is_wanted);
            if let Err(error) = kept.and_then(|kept| if kept { Ok(true) } else { files::remove(&entry.path()) }) {
                failed = failed.and(Err(error));
            }
        }
        failed
    }

    fn derived_path(&self, source: &Digest, version: &str) -> PathBuf {
        self.0.layout.derived().join(format!("{}.{version}", files::digest_name(source)))
    }
}
