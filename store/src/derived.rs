//! Files derived from blobs, for whoever maps them: `derived/<algorithm>-<hex>.<version>` each, under the digest of the blob that it
//! was made from.
//!
//! They are shortcuts: who finds none makes it again, so none is counted. A collection removes those whose blob is gone, and those of
//! versions that are not said to be current.

use std::path::PathBuf;

use content::Digest;

use crate::sync::atomic::Ordering;
use crate::{Error, Store, files};

impl Store {
    /// Where the file that was derived from a blob is; `None` where there is none of that version.
    pub fn derived(&self, source: &Digest, version: &str) -> Option<PathBuf> {
        Some(self.derived_path(source, version)).filter(|path| path.is_file())
    }

    /// Keeps what was derived from a blob; where it is then. It is there whole or not at all.
    ///
    /// # Errors
    /// It cannot be written, because the disk is full for instance.
    pub fn set_derived(&self, source: &Digest, version: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.derived_path(source, version);
        files::create_folder(&self.0.layout.derived())?;
        // Two may derive the same at a time: either file is right.
        let name = format!("derived-{}", self.0.derivations.fetch_add(1, Ordering::Relaxed));
        let new = self.0.layout.temporary().join(name);
        let put = files::write_synced(&new, bytes)
            .and_then(|()| std::fs::rename(&new, &path).map_err(|error| Error::io("write", &path, error)));
        if put.is_err() {
            // Where it stays it goes with the next start; the reason for the failure says more.
            let _ = files::remove(&new);
        }
        put.map(|()| path)
    }

    /// Removes derived files without a blob, and all but those of these versions.
    ///
    /// # Errors
    /// The folder cannot be read, or the first file that could not be removed; all others are.
    pub fn expire_derived(&self, versions: &[&str]) -> Result<(), Error> {
        let is_wanted = |name: &str| {
            let Some((source, _)) = name.split_once('.').filter(|(_, version)| versions.contains(version)) else {
                return Ok(false);
            };
            files::named_digest(source).map_or(Ok(false), |source| Ok(self.look(&source)?.is_some()))
        };
        self.remove_derived(is_wanted)
    }

    /// Removes what was derived from a blob, by any version.
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
