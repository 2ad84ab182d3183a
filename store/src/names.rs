//! Files named like tags: `<host>/<repository>/:<tag>` below a folder. Tags, their histories and pins lie so.
//!
//! A file's name begins with a colon, which no part of a repository can: `a` with the tag `b` and the repository `a/b`
//! do not collide.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, Store, files};

/// Where the file of `name` (`host/repository:tag`) is below `root`.
pub(crate) fn path(root: PathBuf, name: &str) -> Result<PathBuf, Error> {
    let bad = |reason| content::Error::BadName { name: name.chars().take(160).collect(), what: "a tag", reason };
    let (repository, tag) = name.rsplit_once(':').ok_or_else(|| bad("expected HOST/REPOSITORY:TAG"))?;
    let mut path = root;
    for (position, part) in repository.split('/').enumerate() {
        // The first part is a host, which may have a port.
        check(part, position == 0).map_err(bad)?;
        path.push(part);
    }
    if !repository.contains('/') {
        return Err(bad("expected HOST/REPOSITORY:TAG").into());
    }
    check(tag, false).map_err(bad)?;
    path.push(format!(":{tag}"));
    Ok(path)
}

fn check(part: &str, host: bool) -> Result<(), &'static str> {
    if part.is_empty() || part.starts_with('.') || part.len() > 255 {
        return Err("each part has 1 to 255 characters and does not begin with a dot");
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-') || (host && b == b':');
    if part.starts_with(':') || !part.bytes().all(allowed) {
        return Err("each part has only A-Z a-z 0-9 . _ -");
    }
    Ok(())
}

/// Removes the file and the folders below `root` that this leaves empty; says whether the file was there.
pub(crate) fn remove(root: &Path, path: &Path) -> Result<bool, Error> {
    if !files::remove(path)? {
        return Ok(false);
    }
    for folder in path.ancestors().skip(1).take_while(|folder| *folder != root) {
        if fs::remove_dir(folder).is_err() {
            // It is not empty, so neither are those above.
            files::sync_folder(folder)?;
            return Ok(true);
        }
    }
    files::sync_folder(root)?;
    Ok(true)
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
