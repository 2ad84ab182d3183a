//! The folders in which other programs keep their models.

use std::env;
use std::path::PathBuf;

use super::first;

/// Folders of other programs, in the order in which they are searched. They need not exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolFolders {
    /// Folders with `manifests` and `blobs`.
    pub(crate) ollama: Vec<PathBuf>,
    /// Folders with `models--OWNER--NAME`.
    pub(crate) hugging_face: Vec<PathBuf>,
    /// Folders with `OWNER/NAME/FILE.gguf`.
    pub(crate) lm_studio: Vec<PathBuf>,
    /// Folders with `OWNER_NAME_FILE.gguf`.
    pub(crate) llama_cpp: Vec<PathBuf>,
}

impl ToolFolders {
    /// Reads the variables of the programs, and completes them with their defaults.
    pub(crate) fn read() -> Self {
        let home = env::home_dir();
        let at_home = |path: &str| home.iter().map(|home| home.join(path)).collect::<Vec<_>>();
        let named = |variable: &str| first(&[variable]).map(PathBuf::from);
        let cache = named("XDG_CACHE_HOME").map_or_else(|| at_home(".cache"), |cache| vec![cache]);
        let in_cache = |path: &str| cache.iter().map(|cache| cache.join(path)).collect::<Vec<_>>();
        let hub = named("HF_HUB_CACHE").or_else(|| named("HUGGINGFACE_HUB_CACHE"));
        let hub = hub.or_else(|| named("HF_HOME").map(|home| home.join("hub")));
        let service = PathBuf::from("/usr/share/ollama/.ollama/models");
        let ollama = named("OLLAMA_MODELS").map(|folder| vec![folder]);
        // LM Studio notes its folder in this file, if it is not the default.
        let pointer = at_home(".lmstudio-home-pointer").iter().find_map(|file| std::fs::read_to_string(file).ok());
        let pointed = pointer.map(|text| PathBuf::from(text.trim()).join("models"));
        let usual = at_home(".lmstudio/models").into_iter().chain(in_cache("lm-studio/models"));
        Self {
            ollama: ollama.unwrap_or_else(|| at_home(".ollama/models").into_iter().chain([service]).collect()),
            hugging_face: hub.map_or_else(|| in_cache("huggingface/hub"), |folder| vec![folder]),
            lm_studio: unique(pointed.into_iter().chain(usual)),
            llama_cpp: named("LLAMA_CACHE").map_or_else(|| in_cache("llama.cpp"), |folder| vec![folder]),
        }
    }
}

/// Removes folders that occur twice.
fn unique(folders: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for folder in folders {
        if !all.contains(&folder) {
            all.push(folder);
        }
    }
    all
}
