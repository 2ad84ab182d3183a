//! Small file operations whose errors say what was tried on which path.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::Error;

pub(crate) fn create_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|e| Error::io("make the folder", path, e))
}

/// Makes a folder's entries durable. What was renamed into it before survives a power cut afterwards.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|e| Error::io("sync the folder", path, e))
}

/// Makes `folder` and those above it up to `base`, each durable in the one above.
pub(crate) fn create_folder_durably(folder: &Path, base: &Path) -> Result<(), Error> {
    if folder.is_dir() || folder == base {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        create_folder_durably(parent, base)?;
        create_folder(folder)?;
        sync_folder(parent)?;
    }
    Ok(())
}

/// Writes a new file and syncs it.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| Error::io("write", path, e))
}

/// Removes a file; says whether it was there.
pub(crate) fn remove(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("remove", path, e)),
    }
}

/// Removes a folder with all that is in it, where it is there.
pub(crate) fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove the folder", path, e)),
        _ => Ok(()),
    }
}

/// The content of a small file, or `None` where it is not there.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::io("read", path, e)),
    }
}

/// The entries of a folder, sorted by name so that walks are the same everywhere.
pub(crate) fn entries(path: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    let read = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(path)?.collect() };
    let mut entries = read().map_err(|e| Error::io("list the folder", path, e))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    Ok(entries)
}
