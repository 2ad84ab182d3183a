//! Files named like tags: `<host>/<repository>/:<tag>` below a folder. Tags, their histories and pins lie so, and the
//! folders of links.
//!
//! A file's name begins with a colon, which no part of a repository can: `a` with the tag `b` and the repository `a/b`
//! do not collide.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;

use crate::{Error, Store, files, tags};

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

    /// Fails where no tag can be called so.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let reason = |error: Error| format!("its name is no tag's: {error}; remove the file");
        let damaged = |error| Error::Damaged { path: self.path.clone(), reason: reason(error) };
        tags::file(&self.tag()).map(drop).map_err(damaged)
    }
}

/// Where the file of `name` (`host/repository:tag`) is below `root`.
pub(crate) fn path(root: &Path, name: &str) -> Result<PathBuf, Error> {
    Ok(root.join(tags::file(name)?))
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
        // It is not there where its last file was removed since it was listed, or nothing was ever put there.
        let entries = match files::entries_if_there(folder) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable.push(error),
        };
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if let Some(name) = name.strip_prefix(':') {
                self.named.push(Named { repository: repository.to_owned(), name: name.to_owned(), path });
                continue;
            }
            match files::is_folder(&entry) {
                Ok(true) => {
                    let inner = if repository.is_empty() { name } else { format!("{repository}/{name}") };
                    self.folder(&path, &inner);
                }
                Ok(false) => {}
                // Names may be in it.
                Err(error) => self.unreadable.push(error),
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
        self.0.placing.sync(folder)
    }

    /// Removes a file durably, and the folders below `root` that this leaves empty; says whether it was there. The caller holds the lock of
    /// names: a collection waits for it, so that nothing is deleted that a power cut would bring a name back for.
    pub(crate) fn remove_named(&self, root: &Path, path: &Path) -> Result<bool, Error> {
        if !files::remove(path)? {
            return Ok(false);
        }
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
        // The first that is not empty.
        let stays = folders.into_iter().find(|folder| fs::remove_dir(folder).is_err());
        self.0.placing.sync(stays.unwrap_or(root)).map(|()| true)
    }
}
