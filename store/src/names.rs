//! Files named like tags: `<host>/<repository>/:<tag>` below a folder. Tags, their histories and pins lie so, and the
//! folders of links.
//!
//! A file's name begins with a colon, which no part of a repository can: `a` with the tag `b` and the repository `a/b`
//! do not collide.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, Store, files, links, tags};

/// What is below a folder.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Everything whose name begins with a colon, sorted.
    pub(crate) named: Vec<Named>,
    /// Folders that could not be listed: what is in them is not known.
    pub(crate) unreadable: Vec<Error>,
}

/// A file or folder whose name begins with a colon.
#[derive(Debug)]
pub(crate) struct Named {
    /// `host/repository`, or less where it lies too high.
    pub(crate) repository: String,
    /// Its name without the colon.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Named {
    /// `host/repository:tag`.
    pub(crate) fn tag(&self) -> String {
        format!("{}:{}", self.repository, self.name)
    }
}

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

/// Whether an entry is a folder, or a link to one.
fn is_folder(entry: &fs::DirEntry) -> std::io::Result<bool> {
    let kind = entry.file_type()?;
    if kind.is_symlink() { Ok(fs::metadata(entry.path())?.is_dir()) } else { Ok(kind.is_dir()) }
}

/// Everything below `root` whose name begins with a colon. A folder that cannot be listed hides nothing but what is in it.
pub(crate) fn walk(root: &Path) -> Walk {
    let mut walk = Walk::default();
    walk.folder(root, "");
    walk.named.sort_by(|a, b| (&a.repository, &a.name).cmp(&(&b.repository, &b.name)));
    walk
}

impl Walk {
    fn folder(&mut self, folder: &Path, repository: &str) {
        let entries = match files::entries(folder) {
            Ok(entries) => entries,
            // Its last file was removed since it was listed, or nothing was ever put there.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return self.unreadable.push(error),
        };
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if let Some(name) = name.strip_prefix(':') {
                self.named.push(Named { repository: repository.to_owned(), name: name.to_owned(), path });
                continue;
            }
            match is_folder(&entry) {
                Ok(true) => {
                    let inner = if repository.is_empty() { name } else { format!("{repository}/{name}") };
                    self.folder(&path, &inner);
                }
                Ok(false) => {}
                // Names may be in it.
                Err(error) => self.unreadable.push(Error::io("look at", &path, error)),
            }
        }
    }

    /// The names of all tags that were found; what cannot be listed is logged.
    pub(crate) fn tags(self) -> Vec<String> {
        for error in &self.unreadable {
            tracing::warn!("{error}");
        }
        let mut names: Vec<String> = self.named.iter().map(Named::tag).collect();
        names.sort_unstable();
        names
    }
}

impl Store {
    /// Writes a file of that name durably; a crash leaves the old one or the new one. The caller holds the lock of names.
    pub(crate) fn write_named(&self, kind: &str, name: &str, path: &Path, text: &str) -> Result<(), Error> {
        let folder = path.parent().expect("invariant: a file of a name lies in its repository's folder");
        self.create_folder_durably(folder)?;
        let temporary = self.0.layout.temporary().join(format!("{kind}-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, text.as_bytes())?;
        fs::rename(&temporary, path).map_err(|e| Error::io("write", path, e))?;
        files::sync_folder(folder)
    }
}
