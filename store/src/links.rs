//! Links: manifests and blobs that were pushed to a repository, apart from the objects that its
//! tags lead to.
//!
//! Registry clients send blobs first, and the manifest that refers to them last. They may delete a
//! tag and still request the manifest by its digest. So the content of a repository is its tags
//! *and* its links. A link is an empty file:
//!
//! ```text
//! links/<host>/<repository>/:manifests/sha256-ab12…   a root of collection until it is removed
//! links/<host>/<repository>/:blobs/sha256-ab12…       a root for [`BLOB_LINK_LIFE`]
//! ```
//!
//! After a crash a link either exists or not. Its folder is synced before the link is acknowledged.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use content::Digest;

use crate::{Error, Names, Store, files, name_table};

/// How long a blob without a referring manifest stays in a repository.
pub const BLOB_LINK_LIFE: Duration = Duration::from_hours(24);

/// The kind of the linked object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A document. The link also keeps the blobs that the document refers to.
    Manifest,
    /// A blob.
    Blob,
}

impl LinkKind {
    /// The folder of these links. The colon distinguishes it from a nested repository.
    fn folder(self) -> &'static str {
        match self {
            Self::Manifest => ":manifests",
            Self::Blob => ":blobs",
        }
    }
}

/// A document that a client pushed to a repository, or that was fetched from an upstream for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedDocument {
    /// `host/repository`.
    pub repository: String,
    /// The document.
    pub digest: Digest,
    /// The time at which it was last pushed or fetched.
    pub modified: SystemTime,
}

/// A link, as the collector reads it.
#[derive(Debug)]
pub(crate) struct Link {
    /// `host/repository`.
    pub(crate) repository: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: LinkKind,
    pub(crate) digest: Digest,
    pub(crate) modified: SystemTime,
}

impl Names<'_> {
    /// Links an object to `repository` (`host/name`), durably. An existing link is renewed.
    pub fn link(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let path = self.0.link_path(repository, kind, digest)?;
        let folder = path.parent().expect("invariant: a link lies in its repository's folder");
        self.0.0.collection_lock.touch(digest);
        match kind {
            // The document refers to blobs, which must be durable too.
            LinkKind::Manifest => self.0.settle()?,
            LinkKind::Blob => self.0.settle_blob(digest)?,
        }
        // The file itself is not synced: it is empty.
        let make = || -> Result<bool, Error> {
            // New and renewed links use the same clock, so that their times have the order of the
            // calls.
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            match file.and_then(|file| file.set_modified(SystemTime::now())) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(Error::io("make the link", &path, e)),
            }
        };
        let made = match make() {
            // The folder is new, or was just removed because it was empty.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let _names = self.0.lock_names();
                self.0.create_folder_durably(folder)?;
                make()?
            }
            other => other?,
        };
        if !made && !self.0.renew(&path)? {
            // A collection has just removed the link, because it had expired.
            return self.0.names().link(repository, kind, digest);
        }
        if kind == LinkKind::Manifest {
            self.0.0.index.expect(digest);
        }
        self.0.0.pending_renames.sync(folder)?;
        // Another thread may have made the folder and not synced it yet.
        self.0.settle_folders(folder)
    }

    /// Removes a link from `repository` and returns whether it existed. The bytes stay until the
    /// next collection.
    pub fn unlink(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        let path = self.0.link_path(repository, kind, digest)?;
        if kind == LinkKind::Blob {
            self.0.0.promises.withdraw(repository, digest, None);
        }
        let _names = self.0.lock_names();
        self.0.remove_named(&self.0.0.layout.links(), &path)
    }

    /// [`Names::unlink`], unless the object was linked again, or promised, after `until`.
    pub fn unlink_unless_renewed(
        &self,
        repository: &str,
        kind: LinkKind,
        digest: &Digest,
        until: SystemTime,
    ) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        let path = self.0.link_path(repository, kind, digest)?;
        if kind == LinkKind::Blob {
            self.0.0.promises.withdraw(repository, digest, until.checked_add(BLOB_LINK_LIFE));
        }
        // Renewing a link takes this lock too.
        let _names = self.0.lock_names();
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(modified) if modified <= until => self.0.remove_named(&self.0.0.layout.links(), &path),
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// The time at which an object was last linked to `repository`; `None` if it is not linked.
    pub fn linked_at(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<Option<SystemTime>, Error> {
        let path = self.0.link_path(repository, kind, digest)?;
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(modified) => Ok(Some(modified)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Whether an object is linked to `repository`.
    pub fn is_linked(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<bool, Error> {
        let path = self.0.link_path(repository, kind, digest)?;
        files::is_there(&path)
    }

    /// The digests of one kind that are linked to `repository`, sorted.
    pub fn links(&self, repository: &str, kind: LinkKind) -> Result<Vec<Digest>, Error> {
        let folder = self.0.repository_folder(repository)?.join(kind.folder());
        let entries = files::entries_if_there(&folder)?;
        Ok(entries.iter().filter_map(|entry| files::named_digest(&entry.file_name().to_string_lossy())).collect())
    }

    /// The repositories (`host/name`) with links, sorted. Folders that cannot be listed are logged.
    pub fn linked_repositories(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.readable_links().map(|link| link.repository).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The documents that are linked to repositories, sorted by repository. Folders that cannot be
    /// listed are logged.
    pub fn linked_documents(&self) -> Vec<LinkedDocument> {
        let documents = self.0.readable_links().filter(|link| link.kind == LinkKind::Manifest);
        let entry = |link: Link| {
            let Link { repository, digest, modified, .. } = link;
            LinkedDocument { repository, digest, modified }
        };
        documents.map(entry).collect()
    }
}

impl Store {
    /// Sets the time of a link to now; `false` if the link is gone.
    fn renew(&self, path: &Path) -> Result<bool, Error> {
        // The collector checks the time and removes expired links under the same lock.
        let _names = self.lock_names();
        match OpenOptions::new().write(true).open(path).and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("renew the link", path, e)),
        }
    }

    /// Removes an expired link to a blob, unless it was renewed meanwhile or the blob is promised.
    pub(crate) fn remove_expired_link(&self, link: &Link, now: SystemTime) -> Result<(), Error> {
        let _names = self.lock_names();
        let modified = fs::metadata(&link.path).and_then(|metadata| metadata.modified());
        // Held until the link is gone: after a promise, the caller looks for the link again.
        let promises = self.0.promises.lock();
        if modified.is_ok_and(|modified| is_expired(modified, now)) && !promises.contains_key(&link.digest) {
            self.remove_named(&self.0.layout.links(), &link.path)?;
        }
        Ok(())
    }

    fn readable_links(&self) -> impl Iterator<Item = Link> {
        let found = walk(&self.0.layout.links());
        for (_, error) in found.unreadable {
            tracing::warn!("{error}");
        }
        found.links.into_iter()
    }

    fn repository_folder(&self, repository: &str) -> Result<PathBuf, Error> {
        Ok(self.0.layout.links().join(name_table::repository_path(repository)?))
    }

    fn link_path(&self, repository: &str, kind: LinkKind, digest: &Digest) -> Result<PathBuf, Error> {
        Ok(self.repository_folder(repository)?.join(kind.folder()).join(files::digest_name(digest)))
    }
}

/// Whether a link to a blob with this time has expired.
pub(crate) fn is_expired(modified: SystemTime, now: SystemTime) -> bool {
    now.duration_since(modified).is_ok_and(|age| age >= BLOB_LINK_LIFE)
}

/// The contents of the folder of links.
#[derive(Debug, Default)]
pub(crate) struct FoundLinks {
    /// Sorted by repository.
    pub(crate) links: Vec<Link>,
    /// Errors of folders that cannot be listed, with the kind of their links if it is known.
    pub(crate) unreadable: Vec<(Option<LinkKind>, Error)>,
}

pub(crate) fn walk(root: &Path) -> FoundLinks {
    let name_table::Walk { named, unreadable } = name_table::walk(root);
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
        // A link without a readable time counts as new: it must not cause a deletion.
        let modified = entry.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        Some(Link { repository: repository.to_owned(), path: entry.path(), kind, digest, modified })
    };
    Ok(files::entries_if_there(folder)?.into_iter().filter_map(link).collect())
}
