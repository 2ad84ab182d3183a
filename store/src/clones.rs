//! Clones of source files: copies in the folder of the store that share the blocks of the source
//! (`FICLONE` on XFS, btrfs and others). They take no space until the source changes, and stay as
//! they are when it does.
//!
//! ```text
//! adopted/<hex>     a clone; the hex is the digest of path and identity of the source
//! ```
//! A collection removes the clones that no entry refers to.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use content::Digest;

use crate::source_file::{FileIdentity, SourceFile};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::{Blobs, Error, Store, files};

/// The clones that running adoptions refer to, by path.
#[derive(Debug, Default)]
pub(crate) struct ClonesInUse(Mutex<Vec<Weak<SourceFile>>>);

impl ClonesInUse {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<SourceFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file whose bytes become blobs where they lie: the file itself, or a clone of it.
#[derive(Clone, Debug)]
pub struct AdoptedFile {
    stored: Arc<SourceFile>,
    is_clone: bool,
}

impl AdoptedFile {
    /// The file that blobs refer to.
    pub fn stored(&self) -> &Arc<SourceFile> {
        &self.stored
    }

    /// Whether the blobs are independent of the source.
    pub fn is_clone(&self) -> bool {
        self.is_clone
    }
}

impl Blobs<'_> {
    /// Prepares an open file for blobs that lie in it ([`Blobs::refer`]): clones it if the file
    /// system can, otherwise records its identity. `path` is where the file is.
    ///
    /// # Errors
    /// Another file is at the path, the path cannot be recorded, or the file is in the store.
    pub fn adopt_file(&self, path: &Path, file: &File) -> Result<AdoptedFile, Error> {
        self.0.ensure_writable()?;
        let original = SourceFile::of(path, file)?;
        let clones = self.0.0.layout.clones();
        if original.path().starts_with(self.0.home()) && !original.path().starts_with(&clones) {
            let reason = "it is in the folder of the store; name the file that the model was made from".to_owned();
            return Err(Error::CannotRefer { path: original.path().to_owned(), reason });
        }
        // Held until the clone is noted, so that a collection does not remove it in between.
        let mut in_use = self.0.0.clones_in_use.lock();
        let clone = self.0.cloned(&original, file)?;
        let (is_clone, stored) = (clone.is_some(), Arc::new(clone.unwrap_or(original)));
        in_use.retain(|clone| clone.strong_count() > 0);
        in_use.push(Arc::downgrade(&stored));
        Ok(AdoptedFile { stored, is_clone })
    }
}

impl Store {
    /// Clones a file into the store; `None` if the file system cannot.
    fn cloned(&self, original: &SourceFile, file: &File) -> Result<Option<SourceFile>, Error> {
        let folder = self.0.layout.clones();
        let FileIdentity { device, inode, size, modified, changed } = original.identity();
        let name = format!("{device} {inode} {size} {modified} {changed} {}", original.path().display());
        let path = folder.join(Digest::of(name.as_bytes()).hex());
        if !path.is_file() {
            let number = self.0.derivations.fetch_add(1, Ordering::Relaxed);
            let new = self.0.layout.temporary().join(format!("clone-{number}"));
            if !clone_file(file, &new)? {
                return Ok(None);
            }
            files::create_folder_durably(&folder)?;
            fs::rename(&new, &path).map_err(|e| Error::io("rename", &new, e))?;
            files::sync_folder(&folder)?;
        }
        let clone = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        SourceFile::of(&path, &clone).map(Some)
    }

    /// Removes the clones that neither an entry nor a running adoption refers to. Returns errors of
    /// files that cannot be read; then all clones stay.
    pub(crate) fn remove_unused_clones(&self) -> Vec<Error> {
        let clones = match files::entries_if_there(&self.0.layout.clones()) {
            Ok(clones) => clones,
            Err(error) => return vec![error],
        };
        if clones.is_empty() {
            return Vec::new();
        }
        let in_use = self.0.clones_in_use.lock();
        let adopting: Vec<Arc<SourceFile>> = in_use.iter().filter_map(Weak::upgrade).collect();
        let mut used: HashSet<PathBuf> = adopting.iter().map(|file| file.path().to_owned()).collect();
        let mut failed = Vec::new();
        let unreadable = self.each_entry(|_, entry| match entry {
            Ok(entry) => used.extend(entry.files.iter().map(|file| file.path().to_owned())),
            Err(error) => failed.push(error),
        });
        failed.extend(unreadable);
        if failed.is_empty() {
            for clone in clones.iter().map(fs::DirEntry::path).filter(|path| !used.contains(path)) {
                failed.extend(files::remove(&clone).err());
            }
        }
        failed
    }
}

/// Makes `new` a durable clone of a file. Returns false if the file system cannot clone it.
#[cfg(target_os = "linux")]
fn clone_file(file: &File, new: &Path) -> Result<bool, Error> {
    let failed = |e| Error::io("write", new, e);
    let target = File::create(new).map_err(failed)?;
    if rustix::fs::ioctl_ficlone(&target, file).is_err() {
        // No support, another file system, or no permission: the file is used where it is.
        files::remove(new)?;
        return Ok(false);
    }
    target.sync_all().map_err(failed)?;
    files::make_read_only(new)?;
    Ok(true)
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
fn clone_file(_file: &File, _new: &Path) -> Result<bool, Error> {
    Ok(false)
}
