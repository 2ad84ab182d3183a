//! Models of Ollama: `manifests/HOST/NAMESPACE/NAME/TAG` and `blobs/sha256-HEX`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use content::Digest;
use library::{ExternalFile, FileKind, Layout};
use manifests::{Manifest, ModelConfig, ModelRef};

use super::found::{FoundFiles, FoundModel, ModelTexts, Tool, entries, file_name, size_of};

/// Maximum size of a manifest, a config or a text in bytes.
const MAX_DOCUMENT: u64 = 16 << 20;

/// Finds the models in a folder of Ollama.
pub(super) fn models(folder: &Path) -> Vec<FoundModel> {
    let mut found = Vec::new();
    for host in entries(&folder.join("manifests")) {
        walk(folder, &host, &[file_name(&host)], &mut found);
    }
    found
}

/// The folders of a manifest's path, before its tag: host, namespaces and name.
const MAX_PARTS: usize = 8;

fn walk(folder: &Path, at: &Path, parts: &[&str], found: &mut Vec<FoundModel>) {
    for path in entries(at) {
        let name = file_name(&path);
        if name.is_empty() || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            if parts.len() < MAX_PARTS {
                walk(folder, &path, &[parts, &[name]].concat(), found);
            }
        } else if parts.len() > 1 {
            found.push(model(folder, &path, &format!("{}:{name}", parts.join("/"))));
        }
    }
}

fn model(folder: &Path, manifest: &Path, name: &str) -> FoundModel {
    let blobs = folder.join("blobs");
    let shown = name.parse::<ModelRef>().map_or_else(|_| name.to_owned(), |name| name.to_string());
    let mut model = FoundModel::at(Some(Tool::Ollama), shown, manifest, None);
    let read = match read(manifest, &blobs) {
        Ok(read) => read,
        Err(error) => {
            model.files = Err(format!("{error:#}"));
            return model;
        }
    };
    model.bytes = read.files.iter().map(|(_, path)| size_of(path)).sum();
    if let Some((_, weights)) = read.files.first() {
        model.path.clone_from(weights);
        model.digest = super::found::digest_in_name(weights).filter(|_| read.files.len() == 1);
    }
    if model.files.is_ok() {
        model.files = Ok(FoundFiles::Named(read.files));
    }
    model.texts = read.texts;
    model
}

/// The parts of a model of Ollama.
struct OllamaModel {
    /// The weights, and a projector.
    files: Vec<(String, PathBuf)>,
    texts: ModelTexts,
}

fn read(path: &Path, blobs: &Path) -> Result<OllamaModel> {
    let manifest = Manifest::parse(&document(path)?).with_context(|| format!("`{}` is no manifest", path.display()))?;
    let files = match library::classify(&manifest) {
        Layout::Files(files) => files,
        Layout::Lode | Layout::OllamaTensors => {
            bail!("Ollama stores its tensors one by one, which cannot be adopted; `lode pull` fetches the model")
        }
        Layout::Unknown(reason) => bail!("{reason}"),
    };
    let mut model = OllamaModel { files: Vec::new(), texts: ModelTexts::default() };
    for file in files {
        take(&mut model, file, blobs)?;
    }
    ensure!(!model.files.is_empty(), "it has no weights");
    let config = document(&blob(blobs, &manifest.config().digest))?;
    let config = ModelConfig::parse(&config).unwrap_or_default();
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    (model.texts.renderer, model.texts.parser) = (text(config.renderer), text(config.parser));
    Ok(model)
}

/// Adds a layer to the model.
fn take(model: &mut OllamaModel, file: ExternalFile, blobs: &Path) -> Result<()> {
    let path = blob(blobs, file.layer.digest());
    ensure!(path.is_file(), "its blob `{}` is missing", path.display());
    let text = || -> Result<String> {
        String::from_utf8(document(&path)?).with_context(|| format!("`{}` is not text", path.display()))
    };
    let texts = &mut model.texts;
    match file.kind {
        FileKind::Gguf | FileKind::Projector => model.files.push((file.name, path)),
        FileKind::Template => texts.template = Some(text()?),
        FileKind::System => texts.system = Some(text()?),
        FileKind::License => texts.licenses.push(text()?),
        FileKind::Params => texts.parameters = serde_json::from_str(&text()?).context("its parameters")?,
        FileKind::Messages => texts.messages = serde_json::from_str(&text()?).context("its messages")?,
        FileKind::Adapter => bail!("it has an adapter, which cannot be adopted; `lode pull` fetches the model"),
        FileKind::Safetensors | FileKind::Tar => bail!("its layer `{}` has no GGUF file", file.layer.digest().short()),
        // Documents of other programs have no effect in Ollama, either.
        FileKind::Side => {}
    }
    Ok(())
}

fn blob(blobs: &Path, digest: &Digest) -> PathBuf {
    blobs.join(format!("{}-{}", digest.algorithm().name(), digest.hex()))
}

fn document(path: &Path) -> Result<Vec<u8>> {
    let size = size_of(path);
    ensure!(size <= MAX_DOCUMENT, "`{}` has {size} bytes, a document has {MAX_DOCUMENT} at most", path.display());
    std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))
}
