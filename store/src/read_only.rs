//! Stores that cannot be written: on a file system that is read-only, or of another user. What is in them can be read; the index and
//! notes are made in a folder of this process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;

use crate::{Error, Store, files, layout, lock};

/// A folder for what a process notes of a store that it cannot write; removed at the end.
#[derive(Debug)]
pub(crate) struct Notes {
    path: PathBuf,
    /// The folder, locked for as long as the process lives: one that is not locked is of a process that was killed. `None` where the
    /// file system locks no folders: then nothing is swept there either.
    _lock: Option<File>,
}

/// What the names of such folders begin with.
const PREFIX: &str = "lode-notes-";

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
    /// Makes one, and removes those that killed processes have left.
    pub(crate) fn create(temporary: &Path) -> Result<Self, Error> {
        // A folder that cannot be listed can be written all the same.
        for entry in files::entries(temporary).unwrap_or_default() {
            // Any user may have given something that name.
            let is_own = |found: &fs::Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
            if entry.file_name().to_string_lossy().starts_with(PREFIX)
                && entry.metadata().is_ok_and(|found| is_own(&found))
            {
                // One that is locked is in use, and one that cannot be removed is in the way of no other.
                let _ = remove_unlocked(&entry.path());
            }
        }
        loop {
            if let Some(made) = Self::try_create(temporary)? {
                return Ok(made);
            }
        }
    }

    /// `None` where the sweep of another process found the folder before it was locked: the caller tries again under another name.
    fn try_create(temporary: &Path) -> Result<Option<Self>, Error> {
        // Processes of containers that share the folder may have the same id.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let path = temporary.join(format!("{PREFIX}{}-{now}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::io("make the folder", &path, e))?;
        match locked(&path) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            _ if !path.is_dir() => Ok(None),
            locked => Ok(Some(Self { path, _lock: locked.ok() })),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Opens a folder, locked.
fn locked(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

fn remove_unlocked(folder: &Path) -> io::Result<()> {
    let _lock = locked(folder)?;
    fs::remove_dir_all(folder)
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
