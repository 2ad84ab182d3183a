//! Which files make the model at a path.

use std::fs;
use std::path::Path;

use crate::{Error, NamedFile};

/// How deep a model's folder is looked through: `1_Pooling/config.json` is the deepest that tools write.
const MAX_DEPTH: usize = 3;

/// The files of the model at `path`: a GGUF file, with its siblings where it is one of a split, a file of safetensors with the
/// documents beside it, or all files of a folder.
pub fn locate(path: &Path) -> Result<Vec<NamedFile>, Error> {
    let metadata = fs::metadata(path).map_err(|e| Error::io("find", path.display(), e))?;
    if metadata.is_dir() {
        let mut files = Vec::new();
        walk(path, "", 0, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        return Ok(files);
    }
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

/// Of how many files that of safetensors is one, where there are several: `model-00001-of-00003.safetensors`.
fn shards(name: &str) -> Option<u32> {
    let (rest, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let number = rest.rsplit_once('-')?.1;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let count = count.parse().ok().filter(|_| is_number(count) && is_number(number))?;
    (count > 1).then_some(count)
}

/// The documents that make a model of a single file of weights; none for other files, or where there is no config beside it.
fn documents_beside(name: &str, path: &Path) -> Vec<NamedFile> {
    const DOCUMENTS: [&str; 11] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
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

/// The names of all files of the split GGUF that `name` is one of, in their order; `None` where it is not one.
pub fn split_names(name: &str) -> Option<Vec<String>> {
    let split = Split::parse(name)?;
    Some((1..=split.count).map(|number| split.name(number)).collect())
}

fn walk(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<NamedFile>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(|e| Error::io("list", folder.display(), e))? {
        let path = entry.map_err(|e| Error::io("list", folder.display(), e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            if depth < MAX_DEPTH {
                walk(&path, &format!("{name}/"), depth + 1, files)?;
            }
        } else {
            files.push(NamedFile::local(name, path));
        }
    }
    Ok(())
}

/// The name of one file of a split GGUF: `BASE-00001-of-00003.gguf`.
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
