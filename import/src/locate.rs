//! Finds the files of the model at a path.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contained_folder::{Folder, NONBLOCK};
use crate::inventory::{has_weights, missing_weights};
use crate::{Error, LocalFile, NamedFile};

/// Largest depth at which a model's folder is searched; `1_Pooling/config.json` is the deepest file
/// that tools write.
const MAX_DEPTH: usize = 3;

/// Returns the files of the model at `path`: a GGUF file with the other files of its split, a
/// safetensors file with the documents next to it, or all files of a folder.
pub fn locate(path: &Path) -> Result<Vec<NamedFile>, Error> {
    Ok(find(path, Links::Followed)?.files)
}

/// Returns the same files as [`locate`], for a caller that may read fewer files than this process.
/// Links inside of a folder are not followed out of it. All files are open when this returns, so
/// that they cannot be replaced afterwards.
///
/// # Errors
/// As [`locate`]; also if a link leads out of the folder, or an entry is not a file.
pub fn locate_beneath(path: &Path) -> Result<Vec<NamedFile>, Error> {
    let LocatedFiles { files, within } = find(path, Links::Inside)?;
    let is_folder = path.is_dir();
    let folder = if is_folder { path } else { path.parent().unwrap_or(path) };
    let beneath = Folder::open(folder)?;
    let open = |file: NamedFile| {
        // The path that the caller named may itself be a link.
        let source = if !is_folder && path.ends_with(&file.name) {
            let opened = File::options().read(true).custom_flags(NONBLOCK).open(path);
            opened
                .and_then(|opened| LocalFile::opened(path, opened))
                .map_err(|e| Error::io("open", path.display(), e))?
        } else {
            beneath.file(&within.join(&file.name))?
        };
        Ok(NamedFile { name: file.name, source: Arc::new(source) })
    };
    files.into_iter().map(open).collect()
}

/// Treatment of links to folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Links are followed as folders.
    Followed,
    /// Links are listed as names; their targets are checked when the files are opened.
    Inside,
}

/// Files of a model.
struct LocatedFiles {
    files: Vec<NamedFile>,
    /// Folder to which their names are relative, as a path relative to the named folder.
    within: PathBuf,
}

fn find(path: &Path, links: Links) -> Result<LocatedFiles, Error> {
    let metadata = fs::metadata(path).map_err(|e| Error::io("find", path.display(), e))?;
    if metadata.is_dir() {
        let mut files = Vec::new();
        let within = snapshot(path);
        let folder = within.as_ref().map_or_else(|| path.to_owned(), |within| path.join(within));
        walk(&folder, "", 0, links, &mut files)?;
        if !has_weights(&files) {
            return Err(missing_weights(&format!("the folder `{}`", folder.display()), &files));
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        return Ok(LocatedFiles { files, within: within.unwrap_or_default() });
    }
    Ok(LocatedFiles { files: beside(path)?, within: PathBuf::new() })
}

/// Returns the files of the model to which a single named file belongs.
fn beside(path: &Path) -> Result<Vec<NamedFile>, Error> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(split) = Split::parse(&name) else {
        if let Some(shards) = shards(&name) {
            let folder = path.parent().unwrap_or(path).display();
            return Err(Error::Source(format!(
                "`{name}` is one of {shards} files of a model; give the folder `{folder}`"
            )));
        }
        let beside = documents_beside(&name, path);
        return Ok(std::iter::once(NamedFile::local(name, path)).chain(beside).collect());
    };
    Ok((1..=split.count)
        .map(|number| {
            let name = split.name(number);
            NamedFile::local(name.clone(), path.with_file_name(name))
        })
        .collect())
}

/// Returns the newest version's folder, `snapshots/COMMIT`, relative to `folder`, if `folder` is a
/// cache of the Hugging Face client (`models--USER--NAME`); `None` for other folders.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let is_cache = ["snapshots", "refs", "blobs"].iter().all(|name| folder.join(name).is_dir());
    if !is_cache || folder.join("config.json").exists() {
        return None;
    }
    let commits = || {
        let entries = fs::read_dir(&snapshots).ok()?.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
        Some(entries.collect::<Vec<_>>())
    };
    let main = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
    let commits = commits()?;
    let named = commits.iter().find(|entry| entry.file_name() == main.trim());
    let newest = || commits.iter().max_by_key(|entry| entry.metadata().and_then(|facts| facts.modified()).ok());
    named.or_else(newest).map(|entry| Path::new("snapshots").join(entry.file_name()))
}

/// Returns the number of shards if the name is that of one shard of several:
/// `model-00001-of-00003.safetensors`.
fn shards(name: &str) -> Option<u32> {
    let (rest, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let number = rest.rsplit_once('-')?.1;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let count = count.parse().ok().filter(|_| is_number(count) && is_number(number))?;
    (count > 1).then_some(count)
}

/// Returns the documents that form a model with a single weight file. Empty for other files, or if
/// there is no config next to the file.
fn documents_beside(name: &str, path: &Path) -> Vec<NamedFile> {
    const DOCUMENTS: [&str; 13] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "tekken.json",
        "tiktoken.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    ];
    let is_model = name.ends_with(".safetensors") && path.with_file_name(DOCUMENTS[0]).is_file();
    let beside = DOCUMENTS.iter().map(|document| (*document, path.with_file_name(document)));
    let beside = beside.filter(|(_, path)| is_model && path.is_file());
    beside.map(|(document, path)| NamedFile::local(document, path)).collect()
}

/// Returns the names of all files of the split GGUF to which `name` belongs, in order; `None` if it
/// is not part of a split.
pub fn split_names(name: &str) -> Option<Vec<String>> {
    let split = Split::parse(name)?;
    Some((1..=split.count).map(|number| split.name(number)).collect())
}

fn walk(folder: &Path, prefix: &str, depth: usize, links: Links, files: &mut Vec<NamedFile>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(|e| Error::io("list", folder.display(), e))? {
        let path = entry.map_err(|e| Error::io("list", folder.display(), e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        let is_named = links == Links::Inside && path.is_symlink();
        if path.is_dir() && !is_named {
            if depth < MAX_DEPTH {
                walk(&path, &format!("{name}/"), depth + 1, links, files)?;
            }
        } else {
            files.push(NamedFile::local(name, path));
        }
    }
    Ok(())
}

/// Name of one file of a split GGUF: `BASE-00001-of-00003.gguf`.
pub(crate) struct Split<'a> {
    base: &'a str,
    pub(crate) count: u32,
}

impl<'a> Split<'a> {
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        if number.len() != 5 || count.len() != 5 {
            return None;
        }
        let (number, count): (u32, u32) = (number.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then_some(Self { base, count })
    }

    pub(crate) fn name(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.base, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_no_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let shard = folder.path().join("model-00001-of-00003.safetensors");
        std::fs::write(&shard, b"").expect("a file");
        let error = locate(&shard).expect_err("there are others").to_string();
        assert!(error.contains("one of 3 files of a model; give the folder"), "{error}");
        assert_eq!(shards("model-00001-of-00001.safetensors"), None);
        assert_eq!(shards("model.safetensors"), None);
    }

    #[test]
    fn no_link_leads_out_of_a_folder() {
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(outside.path().join("secrets")).expect("a folder");
        std::fs::write(outside.path().join("secrets/config.json"), b"{}").expect("a file");
        let folder = tempfile::tempdir().expect("a folder");
        let make = |name: &str, to: &Path| std::os::unix::fs::symlink(to, folder.path().join(name)).expect("a link");
        std::fs::write(folder.path().join("config.json"), b"{}").expect("a file");
        std::fs::write(folder.path().join(".hidden"), b"x").expect("a file");
        std::fs::write(folder.path().join("m.gguf"), b"GGUF").expect("a file");
        make("inside.json", Path::new("config.json"));
        let names: Vec<String> =
            locate_beneath(folder.path()).expect("files").into_iter().map(|file| file.name).collect();
        assert_eq!(names, ["config.json", "inside.json", "m.gguf"]);
        make("h", &outside.path().join("secrets"));
        assert!(locate(folder.path()).expect("files").iter().any(|file| file.name == "h/config.json"));
        let error = locate_beneath(folder.path()).expect_err("it leads out").to_string();
        assert!(error.contains("leads out of the folder"), "{error}");
        std::fs::remove_file(folder.path().join("h")).expect("removed");
        make("other.json", &outside.path().join("secrets/config.json"));
        assert!(locate_beneath(folder.path()).is_err());
        std::fs::remove_file(folder.path().join("other.json")).expect("removed");
        make("null", Path::new("/dev/null"));
        assert!(locate_beneath(folder.path()).is_err(), "no device is read");
        // A link that the caller names is followed.
        let named = folder.path().join("named.gguf");
        std::os::unix::fs::symlink(outside.path().join("secrets/config.json"), &named).expect("a link");
        assert_eq!(locate_beneath(&named).expect("a file").len(), 1);
    }

    #[test]
    fn reads_split_names() {
        let split = Split::parse("m-q4-00002-of-00003.gguf").expect("a split");
        assert_eq!(split.count, 3);
        assert_eq!(split.name(3), "m-q4-00003-of-00003.gguf");
        for other in
            ["m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-2-of-3.gguf", "m-00001-of-00002.bin"]
        {
            assert!(Split::parse(other).is_none(), "{other}");
        }
    }
}
