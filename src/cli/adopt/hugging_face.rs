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
/// Files may have been downloaded at different versions; the newest that has a file counts.
fn in_repository((folder, repository): (&PathBuf, String)) -> Vec<FoundModel> {
    let tool = Some(Tool::HuggingFace);
    let mut found: Vec<FoundModel> = Vec::new();
    for snapshot in snapshots(folder) {
        let gguf = gguf_files::in_folder(&snapshot, tool, |stem| gguf_files::hub_name(&repository, stem));
        for model in gguf.into_iter().chain(safetensors(&snapshot, format!("hf.co/{repository}"), tool)) {
            match found.iter_mut().find(|known| known.name == model.name) {
                // An incomplete download is of use only if there is no complete one.
                Some(known) if known.files.is_err() && model.files.is_ok() => *known = model,
                Some(_) => {}
                None => found.push(model),
            }
        }
    }
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

/// Returns the folders of the versions: the one that `main` names, then the newest ones.
fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let main = std::fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
    let mut commits = entries(&folder.join("snapshots"));
    commits.retain(|path| path.is_dir());
    let time = |path: &PathBuf| std::fs::metadata(path).and_then(|facts| facts.modified()).ok();
    commits.sort_by_key(|path| (file_name(path) != main.trim(), std::cmp::Reverse(time(path))));
    commits
}
