//! Classification of a manifest's layers, by the tool that wrote it.
//!
//! | tool | recognized by | weights |
//! |---|---|---|
//! | Lode | tensor layers and an origin | one blob per tensor |
//! | Ollama | `application/vnd.ollama.image.*` layers | one blob per tensor, or GGUF files |
//! | Docker Model Runner | `application/vnd.docker.ai.*` config or layers | files; v0.1 unnamed |
//! | `ModelPack` | `application/vnd.cncf.model.*` artifact, config or layers | files, archives |
//! | other tools | a layer whose name ends in `.gguf` or `.safetensors` | files |
//!
//! Files are GGUF or safetensors files, archives are tar. A layer of an unknown type is kept as a
//! file.

use std::collections::HashSet;

use manifests::{Layer, Manifest, annotations, media_types};

/// Annotation of `ModelPack` and Docker with a file's path.
const FILE_PATH: &str = "org.cncf.model.filepath";

const OLLAMA: &str = "application/vnd.ollama.image.";
const DOCKER: &str = "application/vnd.docker.ai.";
const MODEL_PACK: &str = "application/vnd.cncf.model.";

/// How a manifest stores a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Lode's layout: nothing needs to be imported.
    Lode,
    /// Ollama's layout of safetensors models: the blobs equal Lode's, the config differs.
    OllamaTensors,
    /// Files.
    Files(Vec<ExternalFile>),
    /// Not a readable model, and why.
    Unknown(String),
}

/// A file of an external model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalFile {
    /// Layer of the manifest.
    pub layer: Layer,
    /// Path relative to the model's folder, with slashes. Weights end in `.gguf` or `.safetensors`.
    pub name: String,
    /// True if the manifest contains the name; false if it was derived from the type.
    pub named: bool,
    /// Kind of the file.
    pub kind: FileKind,
}

/// Kind of a file of an external model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A GGUF file with weights and metadata, or a part of a split one.
    Gguf,
    /// Weights in a safetensors file.
    Safetensors,
    /// Side files: configs, tokenizers, texts.
    Side,
    /// A chat template, Ollama's Go template or Jinja.
    Template,
    /// A system prompt.
    System,
    /// Parameters as JSON.
    Params,
    /// A license text.
    License,
    /// Messages as JSON.
    Messages,
    /// A GGUF file with an image projector.
    Projector,
    /// A GGUF file with an adapter.
    Adapter,
    /// An uncompressed archive of weights or side files.
    Tar,
}

/// Classifies a manifest by its media types and names.
pub fn classify(manifest: &Manifest) -> Layout {
    // A model can consist of a header without tensors; its origin still identifies it as Lode's.
    if manifest.layers_of(media_types::ORIGIN).next().is_some() {
        return Layout::Lode;
    }
    if manifest.layers_of(media_types::TENSOR).next().is_some() {
        let ours = manifest.annotations().contains_key(annotations::ARCHITECTURE);
        return if ours { Layout::Lode } else { Layout::OllamaTensors };
    }
    if !is_model(manifest) {
        return Layout::Unknown(unknown(manifest));
    }
    match files(manifest) {
        Ok(files) => {
            let is_weights =
                |file: &ExternalFile| matches!(file.kind, FileKind::Gguf | FileKind::Safetensors | FileKind::Tar);
            if files.iter().any(is_weights) {
                Layout::Files(files)
            } else {
                Layout::Unknown("it has no layer with GGUF or safetensors weights".to_owned())
            }
        }
        Err(reason) => Layout::Unknown(reason),
    }
}

fn is_model(manifest: &Manifest) -> bool {
    let known = |text: &str| [OLLAMA, DOCKER, MODEL_PACK].iter().any(|prefix| text.starts_with(prefix));
    manifest.artifact_type().is_some_and(known)
        || known(manifest.config().media_type.as_str())
        || manifest.layers().iter().any(|layer| known(layer.media_type().as_str()))
        || manifest.layers().iter().any(|layer| own_name(layer).is_some_and(|name| weights(name).is_some()))
}

fn unknown(manifest: &Manifest) -> String {
    let artifact = manifest.artifact_type().unwrap_or("none");
    let config = &manifest.config().media_type;
    let layer = manifest.layers().first().map_or("none", |layer| layer.media_type().as_str());
    format!(
        "its types are none of Lode's, Ollama's, Docker Model Runner's or ModelPack's (artifact type `{artifact}`, \
         config `{config}`, first layer `{layer}`)"
    )
}

fn files(manifest: &Manifest) -> Result<Vec<ExternalFile>, String> {
    let kinds = manifest.layers().iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::with_capacity(kinds.len());
    let mut seen = HashSet::new();
    for (position, layer) in manifest.layers().iter().enumerate() {
        let kind = kinds[position];
        let name = match own_name(layer) {
            Some(name) => with_extension(import::relative_name(name).map_err(|e| e.to_string())?, kind),
            None => made_up(layer, position, &kinds),
        };
        // Models often have several licenses, and the names of license layers have no meaning.
        if kind != FileKind::License && !seen.insert(name.clone()) {
            return Err(format!("it has two files called `{name}`"));
        }
        files.push(ExternalFile { layer: layer.clone(), name, named: own_name(layer).is_some(), kind });
    }
    Ok(files)
}

/// Returns the name that the manifest gives a layer.
fn own_name(layer: &Layer) -> Option<&str> {
    let annotated = [FILE_PATH, annotations::TITLE].into_iter().find_map(|key| layer.annotations.get(key));
    annotated.map(String::as_str).or(layer.name.as_deref()).filter(|name| !name.is_empty())
}

/// Returns the kind of a weights file, by its extension as in imports.
fn weights(name: &str) -> Option<FileKind> {
    let (_, extension) = name.rsplit_once('.')?;
    match extension.to_ascii_lowercase().as_str() {
        "gguf" => Some(FileKind::Gguf),
        "safetensors" => Some(FileKind::Safetensors),
        _ => None,
    }
}

fn with_extension(name: String, kind: FileKind) -> String {
    match kind {
        FileKind::Gguf if weights(&name) != Some(FileKind::Gguf) => format!("{name}.gguf"),
        FileKind::Safetensors if weights(&name) != Some(FileKind::Safetensors) => format!("{name}.safetensors"),
        _ => name,
    }
}

/// Derives a name from the type, for a layer without a name. Weights are named like the files of
/// one model.
fn made_up(layer: &Layer, position: usize, kinds: &[FileKind]) -> String {
    let kind = kinds[position];
    let count = kinds.iter().filter(|other| **other == kind).count();
    let number = kinds[..=position].iter().filter(|other| **other == kind).count();
    let numbered = |base: &str, extension: &str| match count {
        1 => format!("{base}{extension}"),
        _ => format!("{base}-{number:05}-of-{count:05}{extension}"),
    };
    match kind {
        FileKind::Gguf => numbered("model", ".gguf"),
        FileKind::Safetensors => numbered("model", ".safetensors"),
        FileKind::Projector => numbered("mmproj", ".gguf"),
        FileKind::Adapter => numbered("adapter", ".gguf"),
        FileKind::Side => format!("file-{}", layer.digest().short()),
        FileKind::Tar => format!("archive-{}.tar", layer.digest().short()),
        FileKind::Template => numbered("template", ""),
        FileKind::System => numbered("system", ""),
        FileKind::Params => numbered("params", ""),
        FileKind::License => numbered("license", ""),
        FileKind::Messages => numbered("messages", ""),
    }
}

fn kind(layer: &Layer) -> Result<FileKind, String> {
    let media_type = layer.media_type().as_str();
    if let Some(rest) = media_type.strip_prefix(OLLAMA) {
        return Ok(ollama(rest));
    }
    if let Some(rest) = media_type.strip_prefix(DOCKER) {
        return docker(rest);
    }
    if let Some(rest) = media_type.strip_prefix(MODEL_PACK) {
        return model_pack(rest, layer);
    }
    // The layer was pushed by a tool without its own media types for models.
    Ok(own_name(layer).and_then(weights).unwrap_or(FileKind::Side))
}

fn ollama(rest: &str) -> FileKind {
    match rest {
        "model" => FileKind::Gguf,
        "projector" => FileKind::Projector,
        "adapter" => FileKind::Adapter,
        "template" => FileKind::Template,
        "system" => FileKind::System,
        "params" => FileKind::Params,
        "license" => FileKind::License,
        "messages" => FileKind::Messages,
        _ => FileKind::Side,
    }
}

fn docker(rest: &str) -> Result<FileKind, String> {
    Ok(match rest {
        "gguf.v3" => FileKind::Gguf,
        "safetensors" => FileKind::Safetensors,
        "mmproj" => FileKind::Projector,
        "license" => FileKind::License,
        "chat.template.jinja" => FileKind::Template,
        "vllm.config.tar" | "dir.tar" => FileKind::Tar,
        "dduf" => return Err("it is a diffusion model (DDUF), which cannot be imported".to_owned()),
        _ => FileKind::Side,
    })
}

fn model_pack(rest: &str, layer: &Layer) -> Result<FileKind, String> {
    let by_name = own_name(layer).and_then(weights);
    let (role, form) = rest.rsplit_once('.').unwrap_or((rest, ""));
    Ok(match (role, form) {
        ("weight.v1", "gguf") => FileKind::Gguf,
        ("weight.v1", "safetensors") => FileKind::Safetensors,
        // Weights without a name are nearly always one GGUF file; the file's magic bytes are
        // checked later.
        ("weight.v1", "raw") => by_name.unwrap_or(match own_name(layer) {
            None => FileKind::Gguf,
            Some(_) => FileKind::Side,
        }),
        ("weight.v1" | "weight.config.v1", "tar") => FileKind::Tar,
        ("weight.v1" | "weight.config.v1", "tar+gzip" | "tar+zstd") => {
            return Err(format!(
                "its layer `{}` is compressed (`{form}`); weights are read at any place of an archive, which a \
                 compressed one does not allow: push it with raw or tar layers",
                layer.digest().short()
            ));
        }
        _ => FileKind::Side,
    })
}

#[cfg(test)]
mod tests;
