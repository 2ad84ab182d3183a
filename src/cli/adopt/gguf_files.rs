//! The GGUF models in a folder: each file is a model, unless it is a later part of a split file or
//! a projector.

use std::path::{Path, PathBuf};

use super::found::{FoundModel, Tool, digest_in_name, entries, file_name, size_of};

/// Depth to which folders are searched: some repositories have a folder for each quantization.
const MAX_DEPTH: usize = 2;

/// Finds the models in a folder and below it. `name` makes the name of a model from that of its
/// file without number and extension.
pub(super) fn in_folder(folder: &Path, tool: Option<Tool>, name: impl Fn(&str) -> String) -> Vec<FoundModel> {
    let mut files = Vec::new();
    walk(folder, 0, &mut files);
    let models = files.iter().filter(|file| is_model(file));
    models.map(|file| model(file, &files, tool, name(stem(file_name(file))))).collect()
}

/// Returns the entry for a GGUF file, one of `beside`.
pub(super) fn model(file: &Path, beside: &[PathBuf], tool: Option<Tool>, name: String) -> FoundModel {
    let projector = projector_of(file, beside);
    let parts = import::split_names(file_name(file)).unwrap_or_else(|| vec![file_name(file).to_owned()]);
    let parts: Vec<PathBuf> = parts.iter().map(|name| file.with_file_name(name)).collect();
    let missing = parts.iter().find(|part| !part.is_file()).cloned();
    let mut model = FoundModel::at(tool, name, file, projector.clone());
    model.bytes = parts.iter().chain(&projector).map(|part| size_of(part)).sum();
    model.digest = digest_in_name(file).filter(|_| parts.len() == 1);
    if let Some(missing) = missing {
        model.files = Err(format!("its part `{}` is missing", missing.display()));
    }
    model
}

fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        if path.is_dir() && depth < MAX_DEPTH {
            walk(&path, depth + 1, files);
        } else if has_extension(&path) && path.is_file() {
            files.push(path);
        }
    }
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn is_model(path: &Path) -> bool {
    import::is_model_gguf(file_name(path))
}

/// Returns the projector beside a file, or one folder above it. Of several, F16 comes first, as in
/// a pull from the hub. A folder may have files of several models: then the name of the projector
/// must begin as that of the file.
fn projector_of(file: &Path, all: &[PathBuf]) -> Option<PathBuf> {
    let folders = [file.parent(), file.parent().and_then(Path::parent)];
    let is_near = |path: &&PathBuf| folders.contains(&path.parent());
    let rank = |path: &PathBuf| {
        let is_far = path.parent() != file.parent();
        Some((is_far, import::projector_rank(file_name(path))?, path.clone()))
    };
    let base = |path: &Path| {
        let stem = stem(file_name(path)).to_ascii_lowercase();
        quantization(&stem).map_or_else(|| stem.clone(), |(before, _)| before.to_owned())
    };
    let is_only_model = all.iter().filter(|path| is_model(path)).all(|other| base(other) == base(file));
    let belongs = |path: &&PathBuf| {
        let name = file_name(path).to_ascii_lowercase();
        let lead = name.split("mmproj").next().unwrap_or_default();
        if lead.is_empty() { is_only_model } else { file_name(file).to_ascii_lowercase().starts_with(lead) }
    };
    all.iter().filter(is_near).filter(belongs).filter_map(rank).min().map(|(_, _, path)| path)
}

/// The name of a file without extension, and without its number in a split file.
pub(super) fn stem(name: &str) -> &str {
    if has_extension(Path::new(name)) {
        return import::gguf_stem(name);
    }
    name.strip_suffix(".safetensors").unwrap_or(name)
}

/// The type of the tensors in a name such as `Qwen3-0.6B-Q4_K_M`, and the part before it.
pub(super) fn quantization(stem: &str) -> Option<(&str, &str)> {
    let at = stem.rfind(['-', '.'])?;
    let (before, word) = (&stem[..at], &stem[at + 1..]);
    let is_type = import::is_tensor_type(&word.to_ascii_lowercase());
    (is_type && !before.is_empty()).then_some((before, word))
}

/// The name of a model of a repository of the hub: the quantization is the tag.
pub(super) fn hub_name(repository: &str, stem: &str) -> String {
    let tag = match quantization(stem) {
        // A prefix of Unsloth's dynamic types.
        Some((before, word)) if before.to_ascii_lowercase().ends_with("-ud") => {
            format!("UD-{}", part(word).to_ascii_uppercase())
        }
        Some((_, word)) => part(word).to_ascii_uppercase(),
        None => part(stem),
    };
    format!("hf.co/{repository}:{tag}")
}

/// A name for a file that no program has named.
pub(super) fn own_name(stem: &str) -> String {
    match quantization(stem) {
        Some((before, word)) => format!("{}:{}", part(before), part(word)),
        None => part(stem),
    }
}

/// Replaces the characters that a part of a model's name cannot have.
pub(super) fn part(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let text: String = text.chars().map(allowed).collect();
    text.trim_start_matches(['.', '-']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_files() {
        for (file, repository, hub, own) in [
            ("Qwen3-0.6B-Q4_K_M.gguf", "Qwen/Q", "hf.co/Qwen/Q:Q4_K_M", "Qwen3-0.6B:Q4_K_M"),
            ("qwen2.5-0.5b.q8_0.gguf", "a/b", "hf.co/a/b:Q8_0", "qwen2.5-0.5b:q8_0"),
            ("m-UD-IQ2_XXS-00001-of-00003.gguf", "a/b", "hf.co/a/b:UD-IQ2_XXS", "m-UD:IQ2_XXS"),
            ("gpt-oss-20b-mxfp4.gguf", "a/b", "hf.co/a/b:MXFP4", "gpt-oss-20b:mxfp4"),
            ("a model.gguf", "a/b", "hf.co/a/b:a-model", "a-model"),
            ("tiny-quick.gguf", "a/b", "hf.co/a/b:tiny-quick", "tiny-quick"),
            ("Q4_0.gguf", "a/b", "hf.co/a/b:Q4_0", "Q4_0"),
        ] {
            assert_eq!((hub_name(repository, stem(file)), own_name(stem(file))), (hub.to_owned(), own.to_owned()));
        }
    }

    #[test]
    fn files_of_a_folder_are_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, size: usize| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, vec![0; size]).expect("a file");
        };
        write("a-Q4_0.gguf", 4);
        write("mmproj-a-BF16.gguf", 1);
        write("mmproj-a-F16.gguf", 2);
        write("imatrix.gguf", 9);
        write("other/Other-Q8_0.gguf", 3);
        write("other/a_mmproj-F16.gguf", 3);
        write("readme.md", 9);
        write("Q8_0/a-Q8_0-00001-of-00002.gguf", 8);
        write("Q8_0/a-Q8_0-00002-of-00002.gguf", 8);
        write("broken/b-Q8_0-00001-of-00002.gguf", 8);
        let found = in_folder(folder.path(), None, own_name);
        let facts: Vec<_> = found.iter().map(|model| (model.name.as_str(), model.bytes, model.files.is_ok())).collect();
        let expect = [("a:Q8_0", 16, true), ("a:Q4_0", 4, true), ("b:Q8_0", 8, false), ("Other:Q8_0", 3, true)];
        assert_eq!(facts, expect, "it is not known to which model a projector belongs");
        std::fs::remove_dir_all(folder.path().join("broken")).expect("removed");
        std::fs::remove_dir_all(folder.path().join("other")).expect("removed");
        let found = in_folder(folder.path(), None, own_name);
        let sizes: Vec<u64> = found.iter().map(|model| model.bytes).collect();
        assert_eq!(sizes, [18, 6], "all files are of one model");
        // As in the cache of llama.cpp.
        write("us_repo_x-Q8_0.gguf", 1);
        write("us_repo_mmproj-x-f16.gguf", 5);
        let found = in_folder(folder.path(), None, own_name);
        let sizes: Vec<u64> = found.iter().map(|model| model.bytes).collect();
        assert_eq!(sizes, [16, 4, 6]);
    }
}
