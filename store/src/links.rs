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

use crate::{Error, Store, files, names, tags};

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

/// A document that a client of the registry put into a repository, or that passed through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedDocument {
    /// `host/repository`.
    pub repository: String,
    /// The document.
    pub digest: Digest,
    /// When it was last put there.
    pub modified: SystemTime,
}

/// A link as the collector sees it.
#[derive(Debug)]
pub(crate) struct Link {
    /// `host/repository`.
    pub(crate) repository: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: LinkKind,
    pub(crate) digest: Digest,
    pub(crate) modified: SystemTime,
}

impl Store {
    /// Puts a blob into `repository` (`host/name`), durably. A link that is there already is renewed.
    pub fn link(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<(), Error> {
        self.ensure_writable()?;
        let path = self.link_path(repository, kind, digest)?;
        let folder = path.parent().expect("invariant: a link lies in its repository's folder");
        self.0.gate.touch(digest);
        match kind {
            // It refers to others.
            LinkKind::Manifest => self.settle()?,
            LinkKind::Blob => self.settle_blob(digest)?,
        }
        // Not the file: there is nothing in it.
        let make = || -> Result<bool, Error> {
            // Its time is by the same clock as that of one that is renewed: what was put there first is older.
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            match file.and_then(|file| file.set_modified(SystemTime::now())) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(Error::io("make the link", &path, e)),
            }
        };
        let made = match make() {
            // The folder is new, or was removed a moment ago because it was empty.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let _names = self.names();
                self.create_folder_durably(folder)?;
                make()?
            }
            other => other?,
        };
        if !made && !self.renew(&path)? {
            // A collection has just removed it, because it had run out.
            return self.link(repository, kind, digest);
        }
        if kind == LinkKind::Manifest {
            self.0.index.expect(digest);
        }
        self.0.placing.sync(folder)?;
        // Somebody else may have made the folder, and be about to sync it.
        self.settle_folders(folder)
    }

    /// Gives a link the present time; `false` where it is gone.
    fn renew(&self, path: &Path) -> Result<bool, Error> {
        // The collector looks at the time and removes what has run out under the same lock.
        let _names = self.names();
        match OpenOptions::new().write(true).open(path).and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("renew the link", path, e)),
        }
    }

    /// Removes a link to a blob that has run out; one that was renewed meanwhile, or is promised, stays.
    pub(crate) fn remove_expired_link(&self, link: &Link, now: SystemTime) -> Result<(), Error> {
        let _names = self.names();
        let modified = fs::metadata(&link.path).and_then(|metadata| metadata.modified());
        // Held until it is gone: who is told of a promise looks for the link afterwards.
        let promises = self.0.promises.lock();
        if modified.is_ok_and(|modified| is_expired(modified, now)) && !promises.contains_key(&link.digest) {
            self.remove_named(&self.0.layout.links(), &link.path)?;
        }
        Ok(())
    }

    /// Takes a blob out of `repository`; says whether it was there. The bytes stay until the next collection.
    pub fn unlink(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        self.ensure_writable()?;
        let path = self.link_path(repository, kind, digest)?;
        if kind == LinkKind::Blob {
            self.0.promises.withdraw(repository, digest, None);
        }
        let _names = self.names();
        self.remove_named(&self.0.layout.links(), &path)
    }

    /// The same, unless it was put there again, or promised, after `until`.
    pub fn unlink_unless_renewed(
        &self,
        repository: &str,
        kind: LinkKind,
        digest: &Digest,
        until: SystemTime,
    ) -> Result<bool, Error> {
        self.ensure_writable()?;
        let path = self.link_path(repository, kind, digest)?;
        if kind == LinkKind::Blob {
            self.0.promises.withdraw(repository, digest, until.checked_add(BLOB_LINK_LIFE));
        }
        // Who renews it takes this, too.
        let _names = self.names();
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(modified) if modified <= until => self.remove_named(&self.0.layout.links(), &path),
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// When a blob was last put into `repository`; `None` where it was not.
    pub fn linked_at(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<Option<SystemTime>, Error> {
        let path = self.link_path(repository, kind, digest)?;
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(modified) => Ok(Some(modified)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Whether a blob was put into `repository`.
    pub fn is_linked(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        let path = self.link_path(repository, kind, digest)?;
        files::is_there(&path)
    }

    /// The digests of one kind that were put into `repository`, sorted.
    pub fn links(&self, repository: &str, kind: LinkKind) -> Result<Vec<Digest>, Error> {
        let folder = self.repository_folder(repository)?.join(kind.folder());
        let entries = files::entries_if_there(&folder)?;
        Ok(entries.iter().filter_map(|entry| files::named_digest(&entry.file_name().to_string_lossy())).collect())
    }

    /// The repositories (`host/name`) with links, sorted. Folders that cannot be listed are logged.
    pub fn linked_repositories(&self) -> Vec<String> {
        let mut names: Vec<String> = self.readable_links().map(|link| link.repository).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The documents that were put into repositories, sorted by repository. Folders that cannot be listed are logged.
    pub fn linked_documents(&self) -> Vec<LinkedDocument> {
        let documents = self.readable_links().filter(|link| link.kind == LinkKind::Manifest);
        let entry = |link: Link| {
            let Link { repository, digest, modified, .. } = link;
            LinkedDocument { repository, digest, modified }
        };
        documents.map(entry).collect()
    }

    fn readable_links(&self) -> impl Iterator<Item = Link> {
        let found = walk(&self.0.layout.links());
        for (_, error) in found.unreadable {
            tracing::warn!("{error}");
        }
        found.links.into_iter()
    }

    fn repository_folder(&self, repository: &str) -> Result<PathBuf, Error> {
        Ok(self.0.layout.links().join(tags::repository_path(repository)?))
    }

    fn link_path(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<PathBuf, Error> {
        Ok(self.repository_folder(repository)?.join(kind.folder()).join(files::digest_name(digest)))
    }
}

/// Whether a link to a blob that was last renewed then has run out.
pub(crate) fn is_expired(modified: SystemTime, now: SystemTime) -> bool {
    now.duration_since(modified).is_ok_and(|age| age >= BLOB_LINK_LIFE)
}

/// What is below the folder of links.
#[derive(Debug, Default)]
pub(crate) struct FoundLinks {
    /// Sorted by repository.
    pub(crate) links: Vec<Link>,
    /// Folders whose links are not known, with the kind where they have only one.
    pub(crate) unreadable: Vec<(Option<LinkKind>, Error)>,
}

pub(crate) fn walk(root: &Path) -> FoundLinks {
    let names::Walk { named, unreadable } = names::walk(root);
    let unreadable = unreadable.into_iter().map(|error| (None, error)).collect();
    let mut found = FoundLinks { links: Vec::new(), unreadable };
    for folder in named {
        let kinds = [LinkKind::Manifest, LinkKind::Blob];
        let Some(kind) = kinds.into_iter().find(|kind| kind.folder().strip_prefix(':') == Some(&folder.name)) else {
            continue;
        };
        match links_in(&folder.path, &folder.repository, kind) {
            Ok(links) => found.links.extend(links),
            Err(error) => found.unreadable.push((Some(kind), error)),
        }
    }
    found
}

fn links_in(folder: &Path, repository: &str, kind: LinkKind) -> Result<Vec<Link>, Error> {
    let link = |entry: fs::DirEntry| {
        let digest = files::named_digest(&entry.file_name().to_string_lossy())?;
        // One without a readable time is taken for new: it must not be the reason for a deletion.
        let modified = entry.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        Some(Link { repository: repository.to_owned(), path: entry.path(), kind, digest, modified })
    };
    Ok(files::entries_if_there(folder)?.into_iter().filter_map(link).collect())
}
