//! Roots: more stores, which this one reads and never changes.
//!
//! A blob or a tag that the store does not have is looked for in its roots, in their order. A tag
//! of the store hides the tags of that name in roots. A root takes no lock and gets no index, and
//! nothing is written to it, so any number of machines can share it, also on a network file system.
//! Another process may write to it as to its own store.
//!
//! Blobs that only the tier of a root has, and blobs that lie in files outside of the root, are not
//! found: this process does not read where the writers of a root tell it to.
//!
//! A root that cannot be read, such as one that is not mounted at the moment, counts as empty. It
//! is looked at again each time.

use std::io;
use std::path::Path;
use std::sync::Arc;

use content::Digest;

use crate::index::Index;
use crate::layout::{StoreLayout, VERSION};
use crate::sync::atomic::Ordering;
use crate::{BlobExtents, BlobFile, Blobs, Error, Inner, Names, Store, TagEntry, files, version};

impl Store {
    /// Opens the roots of a store at `home`.
    ///
    /// # Errors
    /// A root is the store itself or another root, or a newer version of Lode made it.
    pub(crate) fn open_roots(home: &Path, paths: &[std::path::PathBuf]) -> Result<Vec<Self>, Error> {
        let mut roots: Vec<Self> = Vec::new();
        for path in paths {
            let path = std::path::absolute(path).map_err(|e| Error::io("find", path, e))?;
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            if real == home || roots.iter().any(|root| root.home() == real) {
                return Err(Error::NoRoot { path, reason: "it is the store itself, or named twice".to_owned() });
            }
            match version::check(&real, &real.join(VERSION)) {
                Ok(_) => {}
                Err(error @ (Error::Newer { .. } | Error::Damaged { .. })) => return Err(error),
                Err(error) => tracing::warn!("a root cannot be read at the moment: {error}"),
            }
            let layout = StoreLayout::of(&real);
            let index = Index::absent(&layout);
            let mut root = Inner::new(layout, index, None, None, None);
            root.is_root = true;
            roots.push(Self(Arc::new(root)));
        }
        Ok(roots)
    }

    /// Whether a folder has a store that can be a root.
    ///
    /// # Errors
    /// The folder cannot be read, or a newer version of Lode made the store.
    pub fn looks_like_root(path: &Path) -> Result<bool, Error> {
        files::entries(path)?;
        version::check(path, &path.join(VERSION))?;
        match files::entries(&StoreLayout::of(path).blobs()) {
            Ok(_) => Ok(true),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The folders of the roots, in the order in which they are read.
    pub fn roots(&self) -> Vec<&Path> {
        self.0.roots.iter().map(Self::home).collect()
    }

    /// Returns the first result of a look into each root. A root that fails is skipped and logged.
    fn first_of_roots<T>(&self, look: impl Fn(&Self) -> Result<Option<T>, Error>) -> Option<T> {
        self.0.roots.iter().find_map(|root| match look(root) {
            Ok(found) => {
                root.0.is_skipped.store(false, Ordering::Relaxed);
                found
            }
            Err(error) => {
                // Once for each failure: it may concern each of thousands of blobs.
                if !root.0.is_skipped.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the root `{}` is skipped: {error}", root.home().display());
                }
                None
            }
        })
    }

    /// The error of the first root that cannot be read.
    pub(crate) fn root_error(&self) -> Option<Error> {
        self.0.roots.iter().find_map(|root| files::entries(&root.0.layout.blobs()).err())
    }

    /// Fails if a root has the tag `name`, and the store has not.
    pub(crate) fn ensure_not_in_root(&self, name: &str) -> Result<(), Error> {
        match self.names().root_of(name) {
            Some(root) => Err(Error::InRoot { name: name.to_owned(), root: root.to_owned() }),
            None => Ok(()),
        }
    }
}

impl Blobs<'_> {
    /// The size of a blob in bytes, if a root has it.
    pub fn size_in_roots(&self, digest: &Digest) -> Option<u64> {
        self.0.first_of_roots(|root| match root.blobs().size_on_disk(digest)? {
            None => root.blobs().size_in_files(digest),
            found => Ok(found),
        })
    }

    /// Whether a root has a blob, and the store has it neither as a file nor in other files.
    pub fn is_only_in_root(&self, digest: &Digest) -> bool {
        let is_here =
            matches!(self.size_on_disk(digest), Ok(Some(_))) || matches!(self.size_in_files(digest), Ok(Some(_)));
        !is_here && self.size_in_roots(digest).is_some()
    }

    pub(crate) fn open_in_roots(self, digest: &Digest) -> Option<BlobFile> {
        self.0.first_of_roots(|root| match root.blobs().open_on_disk(digest)? {
            None => self.open_entry_of(root, digest),
            found => Ok(found),
        })
    }

    pub(crate) fn extents_in_roots(self, digest: &Digest) -> Option<BlobExtents> {
        self.0.first_of_roots(|root| root.blobs().extents(digest))
    }
}

impl Names<'_> {
    /// The folder of the root that a tag is in; `None` if the store has the tag, or no root has it.
    pub fn root_of(&self, name: &str) -> Option<&Path> {
        if self.resolve_here(name).is_ok_and(|digest| digest.is_some()) {
            return None;
        }
        let has = |root: &&Store| root.names().resolve(name).is_ok_and(|digest| digest.is_some());
        self.0.0.roots.iter().find(has).map(Store::home)
    }

    pub(crate) fn resolve_in_roots(self, name: &str) -> Option<Digest> {
        self.0.first_of_roots(|root| root.names().resolve(name))
    }

    pub(crate) fn get_in_roots(self, name: &str) -> Option<TagEntry> {
        self.0.first_of_roots(|root| root.names().get(name))
    }

    /// Adds the tags of roots to tags of the store. A tag that is there stays. The result is sorted
    /// by name.
    pub(crate) fn with_roots(
        self,
        mut tags: Vec<TagEntry>,
        of_root: impl Fn(Names<'_>) -> Vec<TagEntry>,
    ) -> Vec<TagEntry> {
        if self.0.0.roots.is_empty() {
            return tags;
        }
        for root in &self.0.0.roots {
            tags.extend(of_root(root.names()));
        }
        // The sort is stable: of equal names, the one of the store is the first.
        tags.sort_by(|a, b| a.name.cmp(&b.name));
        tags.dedup_by(|later, first| later.name == first.name);
        tags
    }
}
