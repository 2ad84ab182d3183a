//! Files derived from blobs, for whoever maps them: `derived/<algorithm>-<hex>.<version>` each, under the digest of the blob that it
//! was made from.
//!
//! They are shortcuts: who finds none makes it again, so none is counted. A collection removes those whose blob is gone, and those of
//! versions that are not said to be current.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use content::Digest;

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
        // Two may derive the same at a time: either file is right.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = self.derived_path(source, version);
        files::create_folder(&self.0.layout.derived())?;
        let name = format!("derived-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let new = self.0.layout.temporary().join(name);
        let put = files::write_synced(&new, bytes)
            .and_then(|()| std::fs::rename(&new, &path).map_err(|error| Error::io("write", &path, error)));
        if let Err(error) = put {
            files::remove(&new)?;
            return Err(error);
        }
        Ok(path)
    }

    /// Removes derived files without a blob, and all but those of these versions.
    ///
    /// # Errors
    /// The folder cannot be read, or a file not be removed.
    pub fn expire_derived(&self, versions: &[&str]) -> Result<(), Error> {
        let folder = self.0.layout.derived();
        if !folder.is_dir() {
            return Ok(());
        }
        for entry in files::entries(&folder)? {
            let name = entry.file_name();
            let source = name.to_str().and_then(|name| {
                let (source, _) = name.split_once('.').filter(|(_, version)| versions.contains(version))?;
                source.replacen('-', ":", 1).parse::<Digest>().ok()
            });
            let is_wanted = match source {
                Some(source) => self.blob_size(&source)?.is_some(),
                None => false,
            };
            if !is_wanted {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn derived_path(&self, source: &Digest, version: &str) -> PathBuf {
        self.0.layout.derived().join(format!("{}-{}.{version}", source.algorithm().name(), source.hex()))
    }
}
