//! Stores that cannot be written: on a file system that is read-only, or of another user. What is in them can be read; the index and
//! notes are made in a folder of this process.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::{Error, Store, layout, lock};

/// A folder for what a process notes of a store that it cannot write; removed at the end.
#[derive(Debug)]
pub(crate) struct Notes(PathBuf);

/// Makes sure that no process changes the store at `home` now.
pub(crate) fn check_unused(home: &Path) -> Result<(), Error> {
    let file = layout::Layout::of(home).lock_file();
    if !lock::is_held(&file)? {
        return Ok(());
    }
    let holder = lock::holder(&file)?.map_or_else(|| "unknown".to_owned(), |holder| holder.to_string());
    Err(Error::Locked { home: home.to_owned(), holder })
}

impl Notes {
    pub(crate) fn create(temporary: &Path) -> Result<Self, Error> {
        // Processes of containers that share the folder may have the same id.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let path = temporary.join(format!("lode-notes-{}-{now}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::io("make the folder", &path, e))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Store {
    /// Whether there is a store at `home` that this process cannot write.
    pub fn is_read_only_at(home: &Path) -> bool {
        let refused = || access(home, Access::WRITE_OK).is_err_and(|e| matches!(e, Errno::ROFS | Errno::ACCESS));
        layout::Layout::of(home).blobs().is_dir() && refused()
    }

    /// Whether nothing can be added to the store, named in it or removed from it.
    pub fn is_read_only(&self) -> bool {
        self.0.notes.is_some()
    }

    /// # Errors
    /// [`content::Error::ReadOnly`].
    pub fn ensure_writable(&self) -> Result<(), Error> {
        if !self.is_read_only() {
            return Ok(());
        }
        Err(content::Error::ReadOnly { home: self.home().to_owned() }.into())
    }
}
