//! Links: which manifests and blobs were put into a repository, apart from what its tags lead to.
//!
//! A registry's clients send blobs first and the manifest that refers to them last; they delete tags and ask for the
//! manifest by its digest afterwards. So a repository is its tags *and* these. A link is an empty file:
//!
//! ```text
//! links/<host>/<repository>/:manifests/sha256-ab12…   a root of collection until it is removed
//! links/<host>/<repository>/:blobs/sha256-ab12…       a root for [`BLOB_LINK_LIFE`]: time enough for the manifest
//! ```
//!
//! A crash leaves a link or none; the folder is synced before it is acknowledged.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use content::Digest;

use crate::{Error, Store, files, tags};

/// How long a blob stays in a repository that no manifest there refers to.
pub const BLOB_LINK_LIFE: Duration = Duration::from_hours(24);

/// What a link leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A document, whose children it keeps too.
    Manifest,
    /// A blob.
    Blob,
}

impl LinkKind {
    /// The folder of its links; the colon keeps it apart from a deeper repository.
    fn folder(self) -> &'static str {
        match self {
            Self::Manifest => ":manifests",
            Self::Blob => ":blobs",
        }
    }
}

/// A link as the collector sees it.
pub(crate) struct Link {
    pub(crate) path: PathBuf,
    pub(crate) kind: LinkKind,
    pub(crate) digest: Digest,
    pub(crate) modified: SystemTime,
}

impl Store {
    /// Puts a blob into `repository` (`host/name`), durably. A link that is there already is renewed.
    pub fn link(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<(), Error> {
        let path = self.link_path(repository, kind, digest)?;
        let folder = path.parent().expect("invariant: a link lies in its repository's folder");
        // Not the file: there is nothing in it.
        let make = || -> Result<bool, Error> {
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            match file {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(Error::io("make the link", &path, e)),
            }
        };
        let made = match make() {
            // The folder is new, or was removed a moment ago because it was empty.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let _names = self.names();
                files::create_folder_durably(folder, self.home())?;
                make()?
            }
            other => other?,
        };
        if !made {
            let renewed = OpenOptions::new().write(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
            return renewed.map_err(|e| Error::io("renew the link", &path, e));
        }
        files::sync_folder(folder)
    }

    /// Takes a blob out of `repository`; says whether it was there. The bytes stay until the next collection.
    pub fn unlink(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        let path = self.link_path(repository, kind, digest)?;
        if kind == LinkKind::Blob {
            self.0.promises.withdraw(repository, digest);
        }
        let _names = self.names();
        let removed = files::remove(&path)?;
        if removed {
            tidy(&path, &self.0.layout.links())?;
        }
        Ok(removed)
    }

    /// Whether a blob was put into `repository`.
    pub fn is_linked(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        let path = self.link_path(repository, kind, digest)?;
        path.try_exists().map_err(|e| Error::io("look at", &path, e))
    }

    /// The digests of one kind that were put into `repository`, sorted.
    pub fn links(&self, repository: &str, kind: LinkKind) -> Result<Vec<Digest>, Error> {
        let folder = self.repository_folder(repository)?.join(kind.folder());
        let entries = match files::entries(&folder) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        Ok(entries.iter().filter_map(|entry| digest(&entry.file_name().to_string_lossy())).collect())
    }

    /// The repositories (`host/name`) with links, sorted.
    pub fn linked_repositories(&self) -> Result<Vec<String>, Error> {
        let root = self.0.layout.links();
        let mut names: Vec<String> = self
            .all_links()?
            .iter()
            .filter_map(|link| link.path.parent()?.parent()?.strip_prefix(&root).ok())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Every link of every repository.
    pub(crate) fn all_links(&self) -> Result<Vec<Link>, Error> {
        let mut found = Vec::new();
        walk(&self.0.layout.links(), &mut found)?;
        Ok(found)
    }

    fn repository_folder(&self, repository: &str) -> Result<PathBuf, Error> {
        Ok(self.0.layout.links().join(tags::repository_path(repository)?))
    }

    fn link_path(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<PathBuf, Error> {
        let name = format!("{}-{}", digest.algorithm().name(), digest.hex());
        Ok(self.repository_folder(repository)?.join(kind.folder()).join(name))
    }
}

/// Removes the folders that the removal of `path` left empty; syncs the first that is not.
pub(crate) fn tidy(path: &Path, root: &Path) -> Result<(), Error> {
    for folder in path.ancestors().skip(1).take_while(|folder| *folder != root) {
        if fs::remove_dir(folder).is_err() {
            return files::sync_folder(folder);
        }
    }
    files::sync_folder(root)
}

fn digest(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}

fn walk(folder: &Path, found: &mut Vec<Link>) -> Result<(), Error> {
    let entries = match files::entries(folder) {
        // Its last link was removed since it was listed.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name();
        let kind = [LinkKind::Manifest, LinkKind::Blob].into_iter().find(|kind| name.to_str() == Some(kind.folder()));
        match kind {
            Some(kind) => found.extend(links_in(&path, kind)?),
            None if path.is_dir() => walk(&path, found)?,
            None => {}
        }
    }
    Ok(())
}

fn links_in(folder: &Path, kind: LinkKind) -> Result<Vec<Link>, Error> {
    let entries = match files::entries(folder) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let link = |entry: fs::DirEntry| {
        let digest = digest(&entry.file_name().to_string_lossy())?;
        // One without a readable time is taken for new: it must not be the reason for a deletion.
        let modified = entry.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        Some(Link { path: entry.path(), kind, digest, modified })
    };
    Ok(entries.into_iter().filter_map(link).collect())
}
