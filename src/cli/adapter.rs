//! The adapters of a Modelfile: finding their files and sending them to the daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use content::Algorithm;
use import::{LocalFile, digest_of};

use super::client::Client;

/// The file that describes how an adapter is applied.
const CONFIG: &str = "adapter_config.json";
/// Names of the file with the tensors, in the output of PEFT and of mlx-lm.
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapters.safetensors"];

/// Sends adapters to the daemon. Returns `adapters` of a create request: file names with the
/// digests of their blobs. Files of one adapter have the same folder in their names.
pub(super) async fn uploaded(client: &Client, adapters: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    let mut digests = BTreeMap::new();
    for (position, adapter) in adapters.iter().enumerate() {
        for path in files(adapter)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("the name of `{}` is not UTF-8", path.display()))?;
            let name = format!("{position}/{name}");
            eprintln!("sending adapter {}", path.display());
            let digest = upload(client, &path).await?;
            digests.insert(name, digest);
        }
    }
    Ok(digests)
}

/// Returns the files of the adapter at a path: a GGUF file, a safetensors file and the config next
/// to it, or a folder.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    if path.is_file() {
        let config = path.with_file_name(CONFIG);
        let has_config = path.extension().is_some_and(|extension| extension == "safetensors") && config.is_file();
        return Ok([path.to_owned()].into_iter().chain(has_config.then_some(config)).collect());
    }
    if !path.is_dir() {
        bail!("cannot find the adapter `{shown}`");
    }
    if let Some(weights) = WEIGHTS.into_iter().map(|name| path.join(name)).find(|weights| weights.is_file()) {
        return files(&weights);
    }
    if path.join("adapter_model.bin").is_file() {
        bail!("the adapter in `{shown}` is a Python pickle (adapter_model.bin); save it as safetensors");
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot list `{shown}`"))?;
    let mut gguf: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    gguf.retain(|file| file.extension().is_some_and(|extension| extension == "gguf"));
    match gguf.len() {
        1 => Ok(gguf),
        0 => bail!("`{shown}` has no {} and no GGUF file, so it is no adapter", WEIGHTS.join(", no ")),
        _ => bail!("`{shown}` has several GGUF files; name the one to use"),
    }
}

/// Sends a file and returns its digest.
async fn upload(client: &Client, path: &Path) -> Result<String> {
    let own = path.to_owned();
    let hash = move || digest_of(&LocalFile::new(own), Algorithm::Sha256);
    let cannot = || format!("cannot read `{}`", path.display());
    let digest = tokio::task::spawn_blocking(hash).await?.with_context(cannot)?;
    let file = tokio::fs::File::open(path).await.with_context(cannot)?;
    client.upload_blob(&digest, file.into()).await?;
    Ok(digest.to_string())
}
