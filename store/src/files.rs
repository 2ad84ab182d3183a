//! Small file operations. Their errors name the operation and the path.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, sync};

pub(crate) fn create_folder(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|e| Error::io("make the folder", path, e))
}

/// Makes the entries of a folder durable: earlier renames into it survive a power cut.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|e| Error::io("sync the folder", path, e))
}

/// Syncs a folder, if it exists, and the folders down to `levels` below it. Renames of a process
/// that died before it could sync are durable afterwards. Returns the folders that could not be
/// synced; they are logged.
pub(crate) fn sync_folders(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let mut failed = Vec::new();
    // The last level may have very many files, and is not listed.
    let listed = if levels == 0 { Ok(Vec::new()) } else { folders_in(folder) };
    let listed = listed.map(|folders| {
        for inner in folders {
            failed.extend(sync_folders(&inner, levels - 1));
        }
    });
    if let Err(error) = listed.and_then(|()| if folder.is_dir() { sync_folder(folder) } else { Ok(()) }) {
        tracing::warn!("cannot sync a folder, so its recent changes may not survive a power cut: {error}");
        failed.push(folder.to_owned());
    }
    failed
}

/// The folders in a folder; none if it does not exist. Links are not followed: their targets do not
/// belong to the store.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries_if_there(folder)?.iter().filter(|entry| is_folder(entry)).map(fs::DirEntry::path).collect())
}

/// Whether there are more than `most` folders below these. Folders that cannot be listed count as
/// empty.
pub(crate) fn are_more_than(most: usize, roots: &[PathBuf]) -> bool {
    let (mut left, mut number) = (roots.to_vec(), 0);
    while let Some(folder) = left.pop() {
        let found = folders_in(&folder).unwrap_or_default();
        number += found.len();
        if number > most {
            return true;
        }
        left.extend(found);
    }
    false
}

/// Creates `folder` and its missing ancestors, each durable in its parent.
pub(crate) fn create_folder_durably(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        create_folder_durably(parent)?;
        create_folder(folder)?;
        sync_folder(parent)?;
    }
    Ok(())
}

/// Writes a new file and syncs it. If that fails, no partial file stays.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| {
        // The error of the write is the one to report.
        let _ = fs::remove_file(path);
        Error::io("write", path, e)
    })
}

pub(crate) fn make_read_only(path: &Path) -> Result<(), Error> {
    let change = || {
        let mut permissions = fs::metadata(path)?.permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions)
    };
    change().map_err(|e| Error::io("make read-only", path, e))
}

/// Removes a file and returns whether it existed.
pub(crate) fn remove(path: &Path) -> Result<bool, Error> {
    sync::step();
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("remove", path, e)),
    }
}

/// Removes a folder and its contents, if it exists.
pub(crate) fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove the folder", path, e)),
        _ => Ok(()),
    }
}

/// Removes a file, or a folder and its contents, if it exists.
pub(crate) fn remove_any(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove_folder(path),
        Ok(_) => remove(path).map(drop),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io("look at", path, e)),
    }
}

/// The content of a small text file, or `None` if it does not exist.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(Error::io("read", path, e)),
    };
    let not_text = |_| Error::Damaged { path: path.to_owned(), reason: "it is not text; remove the file".to_owned() };
    String::from_utf8(bytes).map(Some).map_err(not_text)
}

/// Whether the file exists.
pub(crate) fn is_there(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(|e| Error::io("look at", path, e))
}

/// The entries of a folder, as [`entries`] returns them; none if it does not exist.
pub(crate) fn entries_if_there(path: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    match entries(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// The file name for a digest: `sha256-ab12…`.
pub(crate) fn digest_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().name(), digest.hex())
}

/// The digest that a file name stands for.
pub(crate) fn named_digest(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}

/// Whether an entry is a folder or a link to one.
pub(crate) fn is_folder(entry: &fs::DirEntry) -> Result<bool, Error> {
    let look = || -> io::Result<bool> {
        let kind = entry.file_type()?;
        if kind.is_symlink() { Ok(fs::metadata(entry.path())?.is_dir()) } else { Ok(kind.is_dir()) }
    };
    look().map_err(|e| Error::io("look at", &entry.path(), e))
}

/// The entries of a folder, sorted by name so that walks have the same order everywhere.
pub(crate) fn entries(path: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    sync::step();
    let read = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(path)?.collect() };
    let mut entries = read().map_err(|e| Error::io("list the folder", path, e))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    Ok(entries)
}
