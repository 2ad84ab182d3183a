//! Models of LM Studio and of llama.cpp, which both keep files of the hub.

use std::path::{Path, PathBuf};

use super::found::{FoundModel, Tool, entries, file_name};
use super::{gguf_files, hugging_face};

/// Finds the models in a folder of LM Studio: `OWNER/NAME/…`, with GGUF files, or with a folder of
/// MLX.
pub(super) fn lm_studio(folder: &Path) -> Vec<FoundModel> {
    let tool = Some(Tool::LmStudio);
    let mut found = Vec::new();
    for owner in entries(folder) {
        for model in entries(&owner) {
            let repository = format!("{}/{}", file_name(&owner), file_name(&model));
            found.extend(gguf_files::in_folder(&model, tool, |stem| gguf_files::hub_name(&repository, stem)));
            found.extend(hugging_face::safetensors(&model, format!("hf.co/{repository}"), tool));
        }
    }
    found
}

/// Finds the models in the cache of llama.cpp: `OWNER_NAME_FILE.gguf`, with a JSON document beside
/// it that has the URL.
pub(super) fn llama_cpp(folder: &Path) -> Vec<FoundModel> {
    let name = |stem: &str| named_by_url(folder, stem).unwrap_or_else(|| gguf_files::own_name(stem));
    gguf_files::in_folder(folder, Some(Tool::LlamaCpp), name)
}

/// Returns the name on the hub, from the URL in a file's document.
fn named_by_url(folder: &Path, stem: &str) -> Option<String> {
    // Of a split file, the first part has the document.
    let names = [format!("{stem}.gguf.json"), format!("{stem}-00001-of-")];
    let is_its = |path: &&PathBuf| {
        let name = file_name(path);
        name == names[0] || (name.starts_with(&names[1]) && name.ends_with(".gguf.json"))
    };
    let document = std::fs::read(entries(folder).iter().find(is_its)?).ok()?;
    let document: serde_json::Value = serde_json::from_slice(&document).ok()?;
    let (_, path) = document.get("url")?.as_str()?.split_once("://")?;
    let mut parts = path.split('/').skip(1);
    let (owner, name, kind) = (parts.next()?, parts.next()?, parts.next()?);
    let file = parts.last()?;
    (kind == "resolve").then(|| gguf_files::hub_name(&format!("{owner}/{name}"), gguf_files::stem(file)))
}
