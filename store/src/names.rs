//! Files named like tags: `<host>/<repository>/:<tag>` below a folder. Tags, their histories and pins lie so.
//!
//! A file's name begins with a colon, which no part of a repository can: `a` with the tag `b` and the repository `a/b`
//! do not collide.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, Store, files, links, tags};

/// Where the file of `name` (`host/repository:tag`) is below `root`.
pub(crate) fn path(root: &Path, name: &str) -> Result<PathBuf, Error> {
    Ok(root.join(tags::file(name)?))
}

/// Removes the file and the folders below `root` that this leaves empty; says whether the file was there.
pub(crate) fn remove(root: &Path, path: &Path) -> Result<bool, Error> {
    let removed = files::remove(path)?;
    if removed {
        links::tidy(path, root)?;
    }
    Ok(removed)
}

/// The names of the files below `root`, sorted.
pub(crate) fn walk(root: &Path) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    if root.is_dir() {
        walk_folder(root, "", &mut found)?;
    }
    found.sort_unstable();
    Ok(found)
}

fn walk_folder(folder: &Path, prefix: &str, found: &mut Vec<String>) -> Result<(), Error> {
    let entries = match files::entries(folder) {
        // Its last file was removed since it was listed.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            let inner = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            walk_folder(&entry.path(), &inner, found)?;
        } else if let Some(tag) = name.strip_prefix(':') {
            found.push(format!("{prefix}:{tag}"));
        }
    }
    Ok(())
}

impl Store {
    /// Writes a file of that name durably; a crash leaves the old one or the new one. The caller holds the lock of names.
    pub(crate) fn write_named(&self, kind: &str, name: &str, path: &Path, text: &str) -> Result<(), Error> {
        let folder = path.parent().expect("invariant: a file of a name lies in its repository's folder");
        files::create_folder_durably(folder, self.home())?;
        let temporary = self.0.layout.temporary().join(format!("{kind}-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, text.as_bytes())?;
        fs::rename(&temporary, path).map_err(|e| Error::io("write", path, e))?;
        files::sync_folder(folder)
    }
}
