//! A table of files that are named like tags: `<host>/<repository>/:<tag>` below a folder. Tags,
//! their histories, pins, and the folders of links have this layout.
//!
//! A file name begins with a colon, which no part of a repository can. So the tag `b` of `a` and
//! the repository `a/b` do not collide.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, Store, files};

/// The entries below a folder.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Every entry whose name begins with a colon, sorted.
    pub(crate) named: Vec<TableEntry>,
    /// Errors of folders that could not be listed. Their entries are unknown.
    pub(crate) unreadable: Vec<Error>,
}

/// A file or folder whose name begins with a colon.
#[derive(Debug)]
pub(crate) struct TableEntry {
    /// `host/repository`, or fewer parts if the file is not deep enough.
    pub(crate) repository: String,
    /// Its name without the colon.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl TableEntry {
    /// `host/repository:tag`.
    pub(crate) fn tag(&self) -> String {
        format!("{}:{}", self.repository, self.name)
    }

    /// Fails if no tag can have this name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let reason = |error: Error| format!("its name is not a valid tag: {error}; remove the file");
        let damaged = |error| Error::Damaged { path: self.path.clone(), reason: reason(error) };
        file(&self.tag()).map(drop).map_err(damaged)
    }
}

/// The path of the file for `name` (`host/repository:tag`) below `root`.
pub(crate) fn path(root: &Path, name: &str) -> Result<PathBuf, Error> {
    Ok(root.join(file(name)?))
}

/// Finds every entry below `root` whose name begins with a colon. A folder that cannot be listed
/// hides only its own entries.
pub(crate) fn walk(root: &Path) -> Walk {
    let mut walk = Walk::default();
    walk.folder(root, "");
    walk.named.sort_by(|a, b| (&a.repository, &a.name).cmp(&(&b.repository, &b.name)));
    walk
}

impl Walk {
    fn folder(&mut self, folder: &Path, repository: &str) {
        // The folder is missing if nothing was ever put there, or if its last file was just
        // removed.
        let entries = match files::entries_if_there(folder) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable.push(error),
        };
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if let Some(name) = name.strip_prefix(':') {
                self.named.push(TableEntry { repository: repository.to_owned(), name: name.to_owned(), path });
                continue;
            }
            match files::is_folder(&entry) {
                Ok(true) => {
                    let inner = if repository.is_empty() { name } else { format!("{repository}/{name}") };
                    self.folder(&path, &inner);
                }
                Ok(false) => {}
                // The entry may be a folder with names.
                Err(error) => self.unreadable.push(error),
            }
        }
    }

    /// The names of all tags that were found, sorted. Folders that cannot be listed are logged.
    pub(crate) fn tags(self) -> Vec<String> {
        for error in &self.unreadable {
            tracing::warn!("{error}");
        }
        let mut names: Vec<String> = self.named.iter().map(TableEntry::tag).collect();
        names.sort_unstable();
        names
    }
}

impl Store {
    /// Writes a file durably; after a crash it has the old or the new content. The caller holds the
    /// lock of names.
    pub(crate) fn write_named(&self, kind: &str, name: &str, path: &Path, text: &str) -> Result<(), Error> {
        let folder = path.parent().expect("invariant: a file of a name lies in its repository's folder");
        self.create_folder_durably(folder)?;
        let temporary = self.0.layout.temporary().join(format!("{kind}-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, text.as_bytes())?;
        fs::rename(&temporary, path).map_err(|e| Error::io("write", path, e))?;
        self.0.pending_renames.sync(folder)
    }

    /// Removes a file durably, and the folders below `root` that become empty. Returns whether the
    /// file existed. The caller holds the lock of names. A collection waits for that lock.
    /// Otherwise it could delete blobs of a name that a power cut brings back.
    pub(crate) fn remove_named(&self, root: &Path, path: &Path) -> Result<bool, Error> {
        if !files::remove(path)? {
            return Ok(false);
        }
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
        // The first folder that is not empty.
        let stays = folders.into_iter().find(|folder| fs::remove_dir(folder).is_err());
        self.0.pending_renames.sync(stays.unwrap_or(root)).map(|()| true)
    }
}

/// The relative path of the tag `host/repository:tag`.
pub(crate) fn file(name: &str) -> Result<PathBuf, Error> {
    let bad = |reason| content::Error::BadName { name: name.chars().take(160).collect(), what: "a tag", reason };
    let (repository, tag) = name.rsplit_once(':').ok_or_else(|| bad("expected HOST/REPOSITORY:TAG"))?;
    let folder = repository_path(repository)?;
    check(tag, false).map_err(bad)?;
    Ok(folder.join(format!(":{tag}")))
}

/// The relative path of `host/repository`.
pub(crate) fn repository_path(repository: &str) -> Result<PathBuf, Error> {
    let bad =
        |reason| content::Error::BadName { name: repository.chars().take(160).collect(), what: "a repository", reason };
    let mut path = PathBuf::new();
    for (position, part) in repository.split('/').enumerate() {
        // The first part is a host, which may contain a port.
        check(part, position == 0).map_err(bad)?;
        path.push(part);
    }
    if !repository.contains('/') {
        return Err(bad("expected HOST/REPOSITORY").into());
    }
    Ok(path)
}

pub(crate) fn check(part: &str, host: bool) -> Result<(), &'static str> {
    if part.is_empty() || part.starts_with('.') || part.len() > 255 {
        return Err("each part has 1 to 255 characters and does not begin with a dot");
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-') || (host && b == b':');
    if part.starts_with(':') || !part.bytes().all(allowed) {
        return Err("each part has only A-Z a-z 0-9 . _ -");
    }
    Ok(())
}
