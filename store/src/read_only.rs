//! Read-only stores: on a read-only file system, or owned by another user. Their content can be
//! read. The index and notes are in a temporary folder of this process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;

use crate::{Error, Store, files, layout, lock};

/// A temporary folder for the notes of a process about a read-only store. It is removed at the end.
#[derive(Debug)]
pub(crate) struct NotesFolder {
    path: PathBuf,
    /// The folder, locked for as long as the process lives. An unlocked folder belongs to a process
    /// that was killed. `None` if the file system cannot lock folders; then no old folder is
    /// removed there either.
    _lock: Option<File>,
}

/// Prefix of the names of such folders.
const PREFIX: &str = "lode-notes-";

/// Checks that no process has the store at `home` open for writing.
pub(crate) fn check_unused(home: &Path) -> Result<(), Error> {
    let file = layout::StoreLayout::of(home).lock_file();
    if !lock::is_held(&file)? {
        return Ok(());
    }
    let holder = lock::holder(&file)?.map_or_else(|| "unknown".to_owned(), |holder| holder.to_string());
    Err(Error::Locked { home: home.to_owned(), holder })
}

impl NotesFolder {
    /// Creates a folder, and removes folders that killed processes left behind.
    pub(crate) fn create(temporary: &Path) -> Result<Self, Error> {
        // A folder that cannot be listed may still be writable.
        for entry in files::entries(temporary).unwrap_or_default() {
            // Another user may own an entry with this prefix.
            let is_own = |found: &fs::Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
            if entry.file_name().to_string_lossy().starts_with(PREFIX)
                && entry.metadata().is_ok_and(|found| is_own(&found))
            {
                // A locked folder is in use. A folder that cannot be removed does no harm.
                let _ = remove_unlocked(&entry.path());
            }
        }
        loop {
            if let Some(made) = Self::try_create(temporary)? {
                return Ok(made);
            }
        }
    }

    /// Returns `None` if another process removed the folder before it was locked: the caller tries
    /// again with another name.
    fn try_create(temporary: &Path) -> Result<Option<Self>, Error> {
        // Processes in different containers that share the folder may have the same id.
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

impl Drop for NotesFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Opens and locks a folder.
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
        layout::StoreLayout::of(home).blobs().is_dir() && refused()
    }

    /// Whether the store rejects all changes.
    pub fn is_read_only(&self) -> bool {
        self.0.notes.is_some() || self.0.is_root
    }

    /// Checks that the store can be written.
    ///
    /// # Errors
    /// [`content::Error::ReadOnly`] if it cannot.
    pub fn ensure_writable(&self) -> Result<(), Error> {
        if !self.is_read_only() {
            return Ok(());
        }
        Err(content::Error::ReadOnly { home: self.home().to_owned() }.into())
    }
}
