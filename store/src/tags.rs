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
        let path = self.tag_path(name)?;
        if self.blob_size(digest)?.is_none() {
            return Err(content::Error::BlobNotFound(*digest).into());
        }
        let folder = path.parent().expect("invariant: a tag lies in its repository's folder");
        let _names = self.names();
        self.record_change(name, digest, SystemTime::now())?;
        files::create_folder_durably(folder, self.home())?;
        let temporary = self.0.layout.temporary().join(format!("tag-{}", Digest::of(name.as_bytes()).short()));
        files::write_synced(&temporary, format!("{digest}\n").as_bytes())?;
        self.reach(CrashPoint::TagWritten);
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the tag", &path, e))?;
        self.reach(CrashPoint::TagRenamed);
        files::sync_folder(folder)
    }

    /// Removes the tag; says whether it was there. Its history and its pin go too, and
    /// folders that this leaves empty.
    pub fn remove_tag(&self, name: &str) -> Result<bool, Error> {
        let path = self.tag_path(name)?;
        let _names = self.names();
        // First what belongs to it: a crash in between leaves a tag without a past, and not a past without a tag.
        self.remove_pin(name)?;
        self.remove_history(name)?;
        names::remove(&self.0.layout.tags(), &path)
    }

    /// The tags of `repository` (`host/name`), sorted by name. Damaged ones are logged and left out.
    pub fn tags_of(&self, repository: &str) -> Result<Vec<TagEntry>, Error> {
        let mut found = Vec::new();
        let folder = self.0.layout.tags().join(repository_path(repository)?);
        let entries = match files::entries(&folder) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        for entry in entries {
            found.extend(read(&entry, repository)?);
        }
        Ok(found.into_iter().filter_map(readable).collect())
    }

    /// All tags, sorted by name. Damaged ones are logged and left out: one of them must not hide the others.
    pub fn tags(&self) -> Result<Vec<TagEntry>, Error> {
        Ok(self.walk_tags()?.into_iter().filter_map(readable).collect())
    }

    /// All tags, or an error where one of them is damaged: for deciding what may be deleted.
    pub(crate) fn all_tags(&self) -> Result<Vec<TagEntry>, Error> {
        self.walk_tags()?.into_iter().collect()
    }

    pub(crate) fn walk_tags(&self) -> Result<Vec<Result<TagEntry, Error>>, Error> {
        let mut found = Vec::new();
        walk(&self.0.layout.tags(), "", &mut found)?;
        found.sort_by(|a, b| match (a, b) {
            (Ok(a), Ok(b)) => a.name.cmp(&b.name),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        Ok(found)
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

fn walk(folder: &Path, prefix: &str, found: &mut Vec<Result<TagEntry, Error>>) -> Result<(), Error> {
    let entries = match files::entries(folder) {
        // Its last tag was removed since it was listed.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            let inner = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            walk(&path, &inner, found)?;
        } else {
            found.extend(read(&entry, prefix)?);
        }
    }
    Ok(())
}

fn readable(found: Result<TagEntry, Error>) -> Option<TagEntry> {
    found.inspect_err(|error| tracing::warn!("{error}")).ok()
}

/// The tag in an entry of a repository's folder, where it is one.
fn read(entry: &fs::DirEntry, repository: &str) -> Result<Option<Result<TagEntry, Error>>, Error> {
    let name = entry.file_name().to_string_lossy().into_owned();
    let Some(tag) = name.strip_prefix(':') else { return Ok(None) };
    let path = entry.path();
    // It may be removed between the listing and now.
    let Some(text) = files::read_if_there(&path)? else { return Ok(None) };
    let modified = entry.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    if let Err(reason) = check(tag, false) {
        return Ok(Some(Err(Error::Damaged {
            path,
            reason: format!("its name is no tag's: {reason}; remove the file"),
        })));
    }
    let name = format!("{repository}:{tag}");
    Ok(Some(parse(&path, &text).map(|digest| TagEntry { name, digest, modified })))
}
