//! Content of a store's folder, read without the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use content::Digest;
use serde_json::Value;

use crate::support::{entries, list, name, read};

/// Digests with sizes in bytes.
pub(crate) type Blobs = BTreeMap<String, u64>;

/// Returns every blob of the store. Asserts that each matches its digest.
pub(crate) fn blobs(home: &Path) -> Blobs {
    let folder = home.join("blobs/sha256");
    let prefixes = if folder.is_dir() { entries(&folder) } else { Vec::new() };
    let paths = prefixes.iter().flat_map(|prefix| entries(prefix));
    paths
        .map(|path| {
            let bytes = read(&path);
            let digest = Digest::of(&bytes);
            assert_eq!(digest.hex(), name(&path), "a blob has other bytes than its name says");
            (digest.to_string(), bytes.len() as u64)
        })
        .collect()
}

/// Returns the path of a blob.
pub(crate) fn path(home: &Path, digest: &str) -> PathBuf {
    let hex = digest.strip_prefix("sha256:").expect("a digest of this store");
    home.join("blobs/sha256").join(&hex[..2]).join(hex)
}

/// Returns the bytes of a blob.
pub(crate) fn blob(home: &Path, digest: &str) -> Vec<u8> {
    read(&path(home, digest))
}

/// Returns the files of all tags.
pub(crate) fn tags(home: &Path) -> Vec<PathBuf> {
    let mut folders = vec![home.join("tags")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// A manifest of the store.
pub(crate) struct Stored {
    pub(crate) digest: String,
    pub(crate) raw: Vec<u8>,
    pub(crate) json: Value,
}

/// Returns the manifest of a tag; `repository` begins with the host.
pub(crate) fn manifest(home: &Path, repository: &str, tag: &str) -> Stored {
    let line = read(&home.join("tags").join(repository).join(format!(":{tag}")));
    let digest = String::from_utf8(line).expect("a tag is text").trim().to_owned();
    let raw = blob(home, &digest);
    let json = serde_json::from_slice(&raw).expect("a manifest is JSON");
    Stored { digest, raw, json }
}

/// Returns the manifest of a model that was created under a short name.
pub(crate) fn created(home: &Path, name: &str) -> Stored {
    manifest(home, &format!("registry.ollama.ai/library/{name}"), "latest")
}

impl Stored {
    /// Returns the config and all layers.
    pub(crate) fn blobs(&self) -> Blobs {
        let described = list(&self.json["layers"]).iter().chain([&self.json["config"]]);
        let one = |d: &Value| (text(&d["digest"]), d["size"].as_u64().expect("a size"));
        described.map(one).collect()
    }

    /// Returns the digests of the tensor layers.
    pub(crate) fn tensors(&self) -> BTreeSet<String> {
        let layers = list(&self.json["layers"]).iter();
        let tensors = layers.filter(|layer| layer["mediaType"] == "application/vnd.ollama.image.tensor");
        tensors.map(|layer| text(&layer["digest"])).collect()
    }

    /// Returns the digests of this manifest's blobs that are missing in `here`.
    pub(crate) fn missing(&self, here: &Blobs) -> Vec<String> {
        self.blobs().into_keys().filter(|digest| !here.contains_key(digest)).collect()
    }

    /// Returns the blobs of this manifest that `other` does not have.
    pub(crate) fn without(&self, other: &Self) -> Blobs {
        let theirs = other.blobs();
        self.blobs().into_iter().filter(|(digest, _)| !theirs.contains_key(digest)).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}
