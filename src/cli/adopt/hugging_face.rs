//! Models in the cache of the Hugging Face client: `models--OWNER--NAME/snapshots/COMMIT/…`, whose
//! files are links to `blobs`, or, where the system has no links, the files themselves.

use std::path::{Path, PathBuf};

use super::found::{FoundModel, Tool, digest_in_name, entries, file_name, size_of};
use super::gguf_files;

/// Finds the models in a cache.
pub(super) fn models(cache: &Path) -> Vec<FoundModel> {
    entries(cache).iter().filter_map(|folder| Some((folder, repository(folder)?))).flat_map(in_repository).collect()
}

/// Returns `OWNER/NAME` for a folder `models--OWNER--NAME`.
pub(super) fn repository(folder: &Path) -> Option<String> {
    Some(file_name(folder).strip_prefix("models--")?.replacen("--", "/", 1)).filter(|_| folder.is_dir())
}

/// Finds the models in a folder `models--OWNER--NAME`: the safetensors model, and each GGUF file.
fn in_repository((folder, repository): (&PathBuf, String)) -> Vec<FoundModel> {
    let Some(snapshot) = newest(folder) else { return Vec::new() };
    let tool = Some(Tool::HuggingFace);
    let mut found = gguf_files::in_folder(&snapshot, tool, |stem| gguf_files::hub_name(&repository, stem));
    found.extend(safetensors(&snapshot, format!("hf.co/{repository}"), tool));
    found
}

/// Returns the entry for the safetensors model in a folder, if there is one.
pub(super) fn safetensors(folder: &Path, name: String, tool: Option<Tool>) -> Option<FoundModel> {
    let files = entries(folder);
    let is_weights = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    let weights: Vec<&PathBuf> = files.iter().filter(is_weights).collect();
    if weights.is_empty() {
        return None;
    }
    let mut model = FoundModel::at(tool, name, folder, None);
    model.bytes = files.iter().filter(|path| path.is_file()).map(|path| size_of(path)).sum();
    model.digest = if let [one] = weights[..] { digest_in_name(one) } else { None };
    if !folder.join("config.json").is_file() {
        model.files = Err("it has no config.json: it is an adapter, or was not downloaded as a whole".to_owned());
    } else if let Some(missing) = missing_shard(folder) {
        model.files = Err(format!("`{missing}` is missing: it was not downloaded as a whole"));
    }
    Some(model)
}

/// Returns the first file that the index of the shards names and the folder lacks.
fn missing_shard(folder: &Path) -> Option<String> {
    let index = std::fs::read(folder.join("model.safetensors.index.json")).ok()?;
    let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
    let names = index.get("weight_map")?.as_object()?.values().filter_map(serde_json::Value::as_str);
    names.into_iter().find(|name| !folder.join(name).is_file()).map(str::to_owned)
}

/// Returns the folder of the version that `main` names, or else of the newest one.
fn newest(folder: &Path) -> Option<PathBuf> {
    let main = std::fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
    let commits: Vec<PathBuf> = entries(&folder.join("snapshots")).into_iter().filter(|path| path.is_dir()).collect();
    let named = commits.iter().find(|commit| file_name(commit) == main.trim());
    let time = |path: &&PathBuf| std::fs::metadata(path).and_then(|facts| facts.modified()).ok();
    named.or_else(|| commits.iter().max_by_key(time)).cloned()
}
