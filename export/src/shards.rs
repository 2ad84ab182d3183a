//! Safetensors files with an index, as Hugging Face's libraries write them. Files are filled in the
//! order of the tensors. A file exceeds the size limit only if a single tensor does.
//!
//! The tensors of a module of sentence-transformers are in a file of the module's folder, without
//! the folder's name before their own.
//!
//! Source of names and rule: `split_torch_state_dict_into_shards` of `huggingface_hub`.

use std::collections::{BTreeMap, HashSet};

use formats::safetensors::{Member, canonical_header};
use serde_json::{Map, Value, json};

use super::array::ArrayEntry;
use super::{ExportFile, FilePiece};
use import::Error;

/// File name of a model, or of a module, that is not split into shards.
const WHOLE: &str = "model.safetensors";

/// Metadata of a set of shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    /// Value of `format` in every file's metadata.
    pub(super) format: &'static str,
    /// Whether a single file has an index too.
    pub(super) always_indexed: bool,
    /// Number of logical elements of all tensors, if the index states it.
    pub(super) parameters: Option<u64>,
}

/// Returns the files with these arrays, and the index. `modules` are the folders of modules.
///
/// # Errors
/// [`Error::Source`] if two arrays have the same name, or an array has the name of the header's
/// metadata entry.
pub(super) fn shards(
    entries: Vec<ArrayEntry>,
    modules: &[String],
    largest: u64,
    label: Label,
) -> Result<Vec<ExportFile>, Error> {
    let (mut files, mut rest) = (Vec::new(), entries);
    for folder in modules {
        let own;
        (own, rest) = of_module(rest, folder);
        if !own.is_empty() {
            refuse_names(&own)?;
            files.push(shard(&format!("{folder}/{WHOLE}"), own, label.format)?);
        }
    }
    files.extend(indexed(rest, largest, label)?);
    Ok(files)
}

/// Separates the arrays of the module in that folder, under their names in its file, from others.
fn of_module(entries: Vec<ArrayEntry>, folder: &str) -> (Vec<ArrayEntry>, Vec<ArrayEntry>) {
    let prefix = format!("{folder}.");
    let (mut own, others): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.member.name.starts_with(&prefix));
    for entry in &mut own {
        entry.member.name.drain(..prefix.len());
    }
    (own, others)
}

/// Returns the files with the arrays of the model itself, and the index.
fn indexed(entries: Vec<ArrayEntry>, largest: u64, label: Label) -> Result<Vec<ExportFile>, Error> {
    refuse_names(&entries)?;
    let total: u64 = entries.iter().map(|entry| entry.member.size).fold(0, u64::saturating_add);
    let groups = split(entries, largest);
    let count = groups.len();
    let mut homes = BTreeMap::new();
    let mut files = Vec::new();
    for (number, group) in groups.into_iter().enumerate() {
        let name = match count {
            1 => WHOLE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        homes.extend(group.iter().map(|entry| (entry.member.name.clone(), json!(name))));
        files.push(shard(&name, group, label.format)?);
    }
    if count > 1 || label.always_indexed {
        files.push(index(homes, total, label)?);
    }
    Ok(files)
}

/// Refuses duplicate and empty names, and the name of the metadata entry: a header is one map from
/// names to arrays and metadata.
fn refuse_names(entries: &[ArrayEntry]) -> Result<(), Error> {
    let mut names = HashSet::new();
    for name in entries.iter().map(|entry| entry.member.name.as_str()) {
        if name == "__metadata__" {
            return Err(Error::Source(
                "a tensor is named `__metadata__`, which is reserved in safetensors files".to_owned(),
            ));
        }
        if name.is_empty() {
            return Err(Error::Source("a tensor has no name".to_owned()));
        }
        if !names.insert(name) {
            return Err(Error::Source(format!(
                "two tensors would have the name `{name}`; names in a folder must be unique"
            )));
        }
    }
    Ok(())
}

fn split(entries: Vec<ArrayEntry>, largest: u64) -> Vec<Vec<ArrayEntry>> {
    let mut groups = vec![Vec::new()];
    let mut filled: u64 = 0;
    for entry in entries {
        let size = entry.member.size;
        if filled > 0 && filled.saturating_add(size) > largest {
            groups.push(Vec::new());
            filled = 0;
        }
        filled = filled.saturating_add(size);
        if let Some(last) = groups.last_mut() {
            last.push(entry);
        }
    }
    groups
}

fn shard(name: &str, entries: Vec<ArrayEntry>, format: &str) -> Result<ExportFile, Error> {
    let members: Vec<Member> = entries.iter().map(|entry| entry.member.clone()).collect();
    let metadata = BTreeMap::from([("format".to_owned(), format.to_owned())]);
    let mut pieces = vec![FilePiece::Bytes(canonical_header(&members, &metadata))];
    pieces.extend(entries.into_iter().map(|entry| entry.piece).filter(|piece| piece.size() > 0));
    ExportFile::new(name, pieces)
}

fn index(homes: BTreeMap<String, Value>, total: u64, label: Label) -> Result<ExportFile, Error> {
    let mut metadata = Map::from_iter([("total_size".to_owned(), json!(total))]);
    metadata.extend(label.parameters.map(|count| ("total_parameters".to_owned(), json!(count))));
    let homes: Map<String, Value> = homes.into_iter().collect();
    let text = format!("{:#}\n", json!({"metadata": metadata, "weight_map": homes}));
    ExportFile::new("model.safetensors.index.json", vec![FilePiece::Bytes(text.into_bytes())])
}

#[cfg(test)]
mod tests {
    use formats::Dtype;

    use super::*;

    fn entry(name: &str, size: u64) -> ArrayEntry {
        let member = Member { name: name.to_owned(), dtype: Dtype::U8, shape: vec![size], size };
        ArrayEntry { member, piece: FilePiece::Zeros(size) }
    }

    fn names(sizes: &[u64], largest: u64) -> Vec<String> {
        let entries = sizes.iter().enumerate().map(|(n, size)| entry(&format!("t{n}"), *size)).collect();
        let label = Label { format: "pt", always_indexed: false, parameters: None };
        let files = shards(entries, &["2_Dense".to_owned()], largest, label).expect("files");
        files.iter().map(|file| file.name().to_owned()).collect()
    }

    #[test]
    fn refuse_names_that_are_taken() {
        let label = Label { format: "pt", always_indexed: false, parameters: None };
        for (names, says) in
            [(["a", "a"], "two tensors would have the name `a`"), (["a", "__metadata__"], "`__metadata__`")]
        {
            // Each array is in its own file, so the names would not collide within one header.
            let error = shards(names.map(|name| entry(name, 4)).to_vec(), &[], 4, label).expect_err("a name is taken");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn modules_have_files_of_their_own() {
        let entries =
            ["embed.weight", "2_Dense.linear.weight", "norm.weight", "2_Dense.linear.bias", "2_Densely.weight"];
        let entries = entries.map(|name| entry(name, 4)).to_vec();
        let label = Label { format: "pt", always_indexed: false, parameters: None };
        let files = shards(entries, &["2_Dense".to_owned(), "3_Dense".to_owned()], 100, label).expect("files");
        let files: Vec<(&str, u64)> = files.iter().map(|file| (file.name(), file.size())).collect();
        let header = |names: [&str; 3], count: usize| {
            let members: Vec<Member> = names[..count].iter().map(|name| entry(name, 4).member).collect();
            canonical_header(&members, &BTreeMap::from([("format".to_owned(), "pt".to_owned())])).len() as u64
        };
        let own = header(["linear.weight", "linear.bias", ""], 2) + 8;
        let rest = header(["embed.weight", "norm.weight", "2_Densely.weight"], 3) + 12;
        assert_eq!(files, [("2_Dense/model.safetensors", own), ("model.safetensors", rest)]);
    }

    #[test]
    fn names_of_modules_are_checked_without_their_prefix() {
        let label = Label { format: "pt", always_indexed: false, parameters: None };
        for (name, says) in [("2_Dense.__metadata__", "`__metadata__`"), ("2_Dense.", "has no name")] {
            let error = shards(vec![entry(name, 4)], &["2_Dense".to_owned()], 100, label).expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn are_filled_in_order() {
        assert_eq!(names(&[4, 4], 8), ["model.safetensors"]);
        assert_eq!(names(&[], 8), ["model.safetensors"]);
        let index = "model.safetensors.index.json";
        let two = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", index];
        assert_eq!(names(&[4, 4, 1], 8), two);
        assert_eq!(names(&[9, 1], 8), two, "a tensor that is too large has a file of its own");
        let groups = split([1, 9, 1, 7, 0].iter().map(|size| entry("t", *size)).collect(), 8);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 3]);
    }
}
