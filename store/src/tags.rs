//! Tags: files with a digest in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use content::Digest;

use crate::{CrashPoint, Error, Store, files, names};

/// A tag with what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagEntry {
    /// `host/repository:tag`.
    pub name: String,
    /// What it names.
    pub digest: Digest,
    /// When it was set.
    pub modified: SystemTime,
}

impl Store {
    /// The digest that `name` (`host/repository:tag`) names.
    pub fn resolve_tag(&self, name: &str) -> Result<Option<Digest>, Error> {
        let path = self.tag_path(name)?;
        files::read_if_there(&path)?.map(|text| parse(&path, &text)).transpose()
    }

    /// The tag of that name, as a listing has it: one that is damaged is logged, and is not there.
    pub fn tag(&self, name: &str) -> Result<Option<TagEntry>, Error> {
        let digest = match self.resolve_tag(name) {
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!("{error}");
                return Ok(None);
            }
            other => other?,
        };
        let Some(digest) = digest else { return Ok(None) };
        let modified = fs::metadata(self.tag_path(name)?).and_then(|metadata| metadata.modified());
        // It may be removed between the two.
        Ok(modified.ok().map(|modified| TagEntry { name: name.to_owned(), digest, modified }))
    }

    /// Makes `name` name `digest`, durably. A crash leaves the old tag or the new one.
    pub fn set_tag(&self, name: &str, digest: &Digest) -> Result<(), Error> {
        self.ensure_writable()?;
        let path = self.tag_path(name)?;
        if self.blob_size(digest)?.is_none() {
            return Err(content::Error::BlobNotFound(*digest).into());
        }
        self.settle()?;
        let folder = path.parent().expect("invariant: a tag lies in its repository's folder");
        let _names = self.names();
        self.record_change(name, digest, SystemTime::now())?;
        self.create_folder_durably(folder)?;
        let temporary = self.0.layout.temporary().join(format!("tag-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, format!("{digest}\n").as_bytes())?;
        self.reach(CrashPoint::TagWritten);
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the tag", &path, e))?;
        self.reach(CrashPoint::TagRenamed);
        self.0.index.expect(digest);
        self.0.placing.sync(folder)
    }

    /// Fails where the names of models cannot be listed at all, so that there would seem to be none.
    pub fn check_names(&self) -> Result<(), Error> {
        files::entries(&self.0.layout.tags()).map(drop)
    }

    /// Removes the tag; says whether it was there. Its history and its pin go too, and
    /// folders that this leaves empty.
    pub fn remove_tag(&self, name: &str) -> Result<bool, Error> {
        self.ensure_writable()?;
        let path = self.tag_path(name)?;
        let _names = self.names();
        // First what belongs to it: a crash in between leaves a tag without a past, and not a past without a tag.
        self.remove_pin(name)?;
        self.remove_history(name)?;
        self.remove_named(&self.0.layout.tags(), &path)
    }

    /// The tags of `repository` (`host/name`), sorted by name. Damaged ones are logged and left out.
    pub fn tags_of(&self, repository: &str) -> Result<Vec<TagEntry>, Error> {
        let mut found = Vec::new();
        let folder = self.0.layout.tags().join(repository_path(repository)?);
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

    /// All tags, sorted by name. Damaged ones are logged and left out: one of them must not hide the others.
    pub fn tags(&self) -> Vec<TagEntry> {
        let found = walk(&self.0.layout.tags());
        for error in found.damaged.iter().map(|(_, error)| error).chain(&found.unreadable) {
            tracing::warn!("{error}");
        }
        found.tags
    }

    fn tag_path(&self, name: &str) -> Result<PathBuf, Error> {
        Ok(self.0.layout.tags().join(file(name)?))
    }
}

/// The file of `host/repository:tag` as a relative path.
pub(crate) fn file(name: &str) -> Result<PathBuf, Error> {
    let bad = |reason| content::Error::BadName { name: name.chars().take(160).collect(), what: "a tag", reason };
    let (repository, tag) = name.rsplit_once(':').ok_or_else(|| bad("expected HOST/REPOSITORY:TAG"))?;
    let folder = repository_path(repository)?;
    check(tag, false).map_err(bad)?;
    Ok(folder.join(format!(":{tag}")))
}

/// `host/repository` as a relative path.
pub(crate) fn repository_path(repository: &str) -> Result<PathBuf, Error> {
    let bad =
        |reason| content::Error::BadName { name: repository.chars().take(160).collect(), what: "a repository", reason };
    let mut path = PathBuf::new();
    for (position, part) in repository.split('/').enumerate() {
        // The first part is a host, which may have a port.
        check(part, position == 0).map_err(bad)?;
        path.push(part);
    }
    if !repository.contains('/') {
        return Err(bad("expected HOST/REPOSITORY").into());
    }
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

fn parse(path: &Path, text: &str) -> Result<Digest, Error> {
    text.trim_end().parse().map_err(|e: content::digest::ParseDigestError| Error::Damaged {
        path: path.to_owned(),
        reason: format!("{e}; set or remove the tag"),
    })
}

/// What is below the folder of tags.
#[derive(Debug, Default)]
pub(crate) struct FoundTags {
    /// Sorted by name.
    pub(crate) tags: Vec<TagEntry>,
    /// Files that are no tags, with the names that they would have.
    pub(crate) damaged: Vec<(String, Error)>,
    /// Folders whose tags are not known.
    pub(crate) unreadable: Vec<Error>,
}

pub(crate) fn walk(root: &Path) -> FoundTags {
    let names::Walk { named, unreadable } = names::walk(root);
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

/// The tag in a file; `None` where it was removed since it was listed.
fn read(path: &Path, repository: &str, tag: &str) -> Result<Option<TagEntry>, Error> {
    let Some(text) = files::read_if_there(path)? else { return Ok(None) };
    if let Err(reason) = check(tag, false) {
        let reason = format!("its name is no tag's: {reason}; remove the file");
        return Err(Error::Damaged { path: path.to_owned(), reason });
    }
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Some(TagEntry { name: format!("{repository}:{tag}"), digest: parse(path, &text)?, modified }))
}
