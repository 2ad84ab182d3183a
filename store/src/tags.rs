//! Tags: files that contain a digest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use content::Digest;

use crate::{CrashPoint, Error, Names, Store, files, name_table};

/// A tag and its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagEntry {
    /// `host/repository:tag`.
    pub name: String,
    /// The digest that the tag names.
    pub digest: Digest,
    /// When it was set.
    pub modified: SystemTime,
}

/// Whether a tag may be moved to another digest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Allowed,
    Forbidden,
}

impl Names<'_> {
    /// The digest that the tag `name` (`host/repository:tag`) names.
    pub fn resolve(&self, name: &str) -> Result<Option<Digest>, Error> {
        match self.resolve_here(name)? {
            None => Ok(self.resolve_in_roots(name)),
            found => Ok(found),
        }
    }

    /// The digest that a tag of this store names, without its roots.
    pub(crate) fn resolve_here(self, name: &str) -> Result<Option<Digest>, Error> {
        let path = self.0.tag_path(name)?;
        files::read_if_there(&path)?.map(|text| parse(&path, &text)).transpose()
    }

    /// The tag `name`, as in a listing: a damaged tag is logged and counts as missing.
    pub fn get(&self, name: &str) -> Result<Option<TagEntry>, Error> {
        let digest = match self.resolve_here(name) {
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!("{error}");
                return Ok(None);
            }
            other => other?,
        };
        let Some(digest) = digest else { return Ok(self.get_in_roots(name)) };
        let modified = fs::metadata(self.0.tag_path(name)?).and_then(|metadata| metadata.modified());
        // The tag may be removed between the two calls.
        Ok(modified.ok().map(|modified| TagEntry { name: name.to_owned(), digest, modified }))
    }

    /// Points the tag `name` to `digest`, durably. After a crash the tag has the old or the new
    /// digest.
    pub fn set(&self, name: &str, digest: &Digest) -> Result<(), Error> {
        self.point(name, digest, Move::Allowed)
    }

    /// [`Names::set`] for a tag that may not be moved.
    ///
    /// # Errors
    /// [`content::Error::TagExists`] if the tag names another digest.
    pub fn set_once(&self, name: &str, digest: &Digest) -> Result<(), Error> {
        self.point(name, digest, Move::Forbidden)
    }

    fn point(self, name: &str, digest: &Digest, may_move: Move) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let path = self.0.tag_path(name)?;
        if self.0.touch_found(digest)?.is_none() {
            return Err(content::Error::BlobNotFound(*digest).into());
        }
        self.0.settle()?;
        let folder = path.parent().expect("invariant: a tag lies in its repository's folder");
        let _names = self.0.lock_names();
        if may_move == Move::Forbidden
            && let Some(other) = self.resolve(name)?.filter(|other| other != digest)
        {
            return Err(content::Error::TagExists { tag: name.to_owned(), digest: other }.into());
        }
        self.0.record_change(name, digest, SystemTime::now())?;
        self.0.create_folder_durably(folder)?;
        let temporary = self.0.0.layout.temporary().join(format!("tag-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, format!("{digest}\n").as_bytes())?;
        self.0.reach(CrashPoint::TagWritten);
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the tag", &path, e))?;
        self.0.0.name_list.insert(name);
        self.0.reach(CrashPoint::TagRenamed);
        self.0.0.index.expect(digest);
        self.0.0.pending_renames.sync(folder)
    }

    /// Fails if the folder of tags cannot be listed, in which case the store would seem to be
    /// empty.
    pub fn check(&self) -> Result<(), Error> {
        files::entries(&self.0.0.layout.tags()).map(drop)
    }

    /// Removes a tag and returns whether it existed. Its history, its pin and folders that become
    /// empty are removed too.
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        self.remove_checked(name, None)
    }

    /// [`Names::remove`], but only if the tag was not set since it was read as `tag`.
    pub fn remove_unchanged(&self, tag: &TagEntry) -> Result<bool, Error> {
        self.remove_checked(&tag.name, Some(tag))
    }

    fn remove_checked(self, name: &str, expected: Option<&TagEntry>) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        let path = self.0.tag_path(name)?;
        let _names = self.0.lock_names();
        self.0.ensure_not_in_root(name)?;
        if expected.is_some() && self.get(name)?.as_ref() != expected {
            return Ok(false);
        }
        // History and pin go first: a crash in between leaves a tag without history, never the
        // reverse.
        self.0.remove_pin(name)?;
        self.0.remove_history(name)?;
        let removed = self.0.remove_named(&self.0.0.layout.tags(), &path)?;
        self.0.0.name_list.remove(name);
        Ok(removed)
    }

    /// The tags of `repository` (`host/name`), also those of roots, sorted by name. Damaged tags
    /// are logged and left out.
    pub fn of_repository(&self, repository: &str) -> Result<Vec<TagEntry>, Error> {
        let own = self.of_repository_here(repository)?;
        Ok(self.with_roots(own, |root| root.of_repository_here(repository).unwrap_or_default()))
    }

    /// The tags of `repository` without those of roots, as [`Names::of_repository`].
    pub fn of_repository_here(&self, repository: &str) -> Result<Vec<TagEntry>, Error> {
        let mut found = Vec::new();
        let folder = self.0.0.layout.tags().join(name_table::repository_path(repository)?);
        for entry in files::entries_if_there(&folder)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(tag) = name.strip_prefix(':') else { continue };
            match read(&entry.path(), repository, tag) {
                Ok(tag) => found.extend(tag),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Ok(found)
    }

    /// All tags, also those of roots, sorted by name. Damaged tags are logged and left out, so that
    /// they do not hide the rest.
    pub fn list(&self) -> Vec<TagEntry> {
        self.with_roots(self.list_here(), |root| root.list_here())
    }

    /// The tags of this store without those of its roots, as [`Names::list`].
    pub fn list_here(&self) -> Vec<TagEntry> {
        let found = walk(&self.0.0.layout.tags());
        for error in found.damaged.iter().map(|(_, error)| error).chain(&found.unreadable) {
            tracing::warn!("{error}");
        }
        found.tags
    }
}

impl Store {
    fn tag_path(&self, name: &str) -> Result<PathBuf, Error> {
        Ok(self.0.layout.tags().join(name_table::file(name)?))
    }
}

fn parse(path: &Path, text: &str) -> Result<Digest, Error> {
    text.trim_end().parse().map_err(|e: content::digest::ParseDigestError| Error::Damaged {
        path: path.to_owned(),
        reason: format!("{e}; set or remove the tag"),
    })
}

/// The contents of the folder of tags.
#[derive(Debug, Default)]
pub(crate) struct FoundTags {
    /// Sorted by name.
    pub(crate) tags: Vec<TagEntry>,
    /// Files that are not valid tags, with the names that the tags would have.
    pub(crate) damaged: Vec<(String, Error)>,
    /// Errors of folders that cannot be listed.
    pub(crate) unreadable: Vec<Error>,
}

pub(crate) fn walk(root: &Path) -> FoundTags {
    let name_table::Walk { named, unreadable } = name_table::walk(root);
    let mut found = FoundTags { unreadable, ..FoundTags::default() };
    for file in named {
        match read(&file.path, &file.repository, &file.name) {
            Ok(tag) => found.tags.extend(tag),
            Err(error) => found.damaged.push((file.tag(), error)),
        }
    }
    found.tags.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Reads the tag in a file; `None` if the file was removed since it was listed.
fn read(path: &Path, repository: &str, tag: &str) -> Result<Option<TagEntry>, Error> {
    let Some(text) = files::read_if_there(path)? else { return Ok(None) };
    if let Err(reason) = name_table::check(tag, false) {
        let reason = format!("its name is not a valid tag: {reason}; remove the file");
        return Err(Error::Damaged { path: path.to_owned(), reason });
    }
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Some(TagEntry { name: format!("{repository}:{tag}"), digest: parse(path, &text)?, modified }))
}
