//! Conversion of other tools' models on a pull: import by range requests, verify, record the
//! origin.
//!
//! ```text
//! expand ──▶ convert: import ──▶ keep the rest ──▶ check digests ──▶ manifest and name
//! ```
//!
//! # Invariants
//! - There is no second copy: weights are written from the connection into tensor blobs. Only files
//!   whose weights are converted are first fetched and verified as a whole.
//! - A model gets its name only after every file with a known digest was read back from its blobs,
//!   and had that digest.
//!
//! A failed attempt leaves its complete tensors under a lease. The next attempt does not fetch them
//! again.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use build::{Created, Draft, StoreTarget, import_into, whole_file};
use content::operation::{Context, Result, Unclassified};
use content::{Algorithm, Amount, Digest, Observer};
use content::{bail, ensure};
use import::{Composed, NamedFile, OpenBlob, Origin, OriginFile, ReadAt};
use library::{ExternalFile, FileKind, Library, MAX_DOCUMENT, RangeReader, Windows};
use manifests::{Layer, LodeConfig, Manifest, ModelConfig, ModelRef, annotations, media_types};
use store::LeaseId;

use crate::http_file::Endpoint;
use crate::hub::{HubFile, HubReference, Listing, MAX_INDEX, MAX_LISTING};
use crate::meter::MeterObserver;

/// How long the tensors of a failed attempt are kept for the next one.
const RESUMABLE: Duration = Duration::from_hours(24);

/// A model of another tool.
#[derive(Debug)]
pub(crate) struct ExternalModel {
    /// The local name.
    pub(crate) name: ModelRef,
    /// Weights and side files. A file whose identity is a digest is verified against it.
    pub(crate) files: Vec<NamedFile>,
    /// Layers that stay unchanged. Their blobs are in the store.
    pub(crate) kept: Vec<Layer>,
    /// The original manifest, if there is one.
    pub(crate) manifest: Option<Digest>,
    /// The original config. Facts from the files take precedence.
    pub(crate) config: ModelConfig,
    /// The original reference, for display.
    pub(crate) reference: String,
}

/// The files of a manifest's layers: an archive yields its members, another layer is one file.
pub(crate) fn expand(files: Vec<(ExternalFile, Arc<dyn ReadAt>)>, observer: &dyn Observer) -> Result<Vec<NamedFile>> {
    let mut expanded = Vec::new();
    for (file, source) in files {
        if file.kind != FileKind::Tar {
            expanded.push(NamedFile { name: file.name, source });
            continue;
        }
        let expected = file.layer.digest();
        // Only the members of an archive are kept; they are verified by their own digests later.
        observer.status(format!("verifying {}", file.name));
        expanded.extend(import::verified_members(&source, expected)?);
    }
    let mut names = HashSet::new();
    match expanded.iter().find(|file| !names.insert(file.name.as_str())) {
        Some(twice) => bail!("the model has two files called `{}`", twice.name),
        None => Ok(expanded),
    }
}

/// Imports a model of another tool. It has its name when this returns; no part is visible before.
pub(crate) fn pull_external(library: &Library, model: &ExternalModel, observer: &dyn Observer) -> Result<Created> {
    let key = model.name.tag_key().context("a new model needs a name with a tag, not a digest")?;
    let guard = library.guard();
    let target = StoreTarget::streaming(library, &guard);
    let lease = LeaseId::parse(&format!("foreign-{}", Digest::of(key.as_bytes()).short()))?;
    match convert(library, &target, model, observer) {
        Ok(draft) => {
            let created = draft.finish(library, &target, &key, observer)?;
            library.leases().end(&lease)?;
            Ok(created)
        }
        Err(error) => {
            let resumable = target.resumable();
            if !resumable.is_empty()
                && let Err(error) = library.leases().set(&lease, &resumable, SystemTime::now() + RESUMABLE)
            {
                tracing::warn!("the tensors of a failed pull may be deleted before the next attempt: {error}");
            }
            Err(error)
        }
    }
}

fn convert(
    library: &Library,
    target: &StoreTarget<'_>,
    model: &ExternalModel,
    observer: &dyn Observer,
) -> Result<Draft> {
    let mut files = model.files.clone();
    let mut inventory = import::inventory(&files)?;
    let is_converted = inventory.note.is_some();
    if is_converted {
        files = fetched(library, target, &files, observer)?;
        inventory = import::inventory(&files)?;
    }
    let mut draft = import_into(library, target, (&files, &inventory), &model.name, observer)?;
    for file in left_over(&draft, &files) {
        if is_weights(&file.name) {
            observer.status(format!("leaving out {}: it is no part of the model's weights", file.name));
            continue;
        }
        draft.layers.push(whole_file(target, file, import::side_type(&file.name), &file.name)?);
    }
    if !is_converted {
        observer.status("verifying sha256 digest".to_owned());
        if let Err(error) = verify(library, &draft.layers, &files) {
            target.forget();
            return Err(error);
        }
    }
    draft.layers.extend(model.kept.iter().cloned());
    // Renderer and parser are not in the source files.
    draft.config.renderer.clone_from(&model.config.renderer);
    draft.config.parser.clone_from(&model.config.parser);
    draft.annotations = BTreeMap::from([(annotations::ORIGIN_REFERENCE.to_owned(), model.reference.clone())]);
    let manifest = model.manifest.map(|digest| (annotations::ORIGIN_MANIFEST.to_owned(), digest.to_string()));
    draft.annotations.extend(manifest);
    Ok(draft)
}

/// Fetches the files as blobs and verifies each with a known digest. For files whose weights are
/// converted, the import keeps no bytes that could be verified later. A collection removes these
/// blobs.
fn fetched(
    library: &Library,
    target: &StoreTarget<'_>,
    files: &[NamedFile],
    observer: &dyn Observer,
) -> Result<Vec<NamedFile>> {
    let fetch = |file: &NamedFile| {
        observer.status(format!("fetching {}", file.name));
        let layer = whole_file(target, file, import::side_type(&file.name), &file.name)?;
        if let Some(expected) = expected_digest(file) {
            // The blob has a SHA-256 digest; a digest of another algorithm is computed from the
            // blob.
            let found = if expected.algorithm() == layer.digest().algorithm() {
                *layer.digest()
            } else {
                import::digest_of(&*library.open(layer.digest()), expected.algorithm())?
            };
            ensure_same(file, &found, &expected)?;
        }
        Ok(NamedFile { name: file.name.clone(), source: library.open_called(layer.digest(), &file.name) })
    };
    files.iter().map(fetch).collect()
}

/// The digest of the whole file, if the source provides it.
fn expected_digest(file: &NamedFile) -> Option<Digest> {
    file.source.identity()?.parse().ok()
}

fn ensure_same(file: &NamedFile, found: &Digest, expected: &Digest) -> Result<()> {
    ensure!(
        found == expected,
        "`{}` has the digest `{found}`, expected `{expected}`: it was corrupted in transit; pull again",
        file.source.name()
    );
    Ok(())
}

/// The files that the import did not turn into a layer.
fn left_over<'a>(draft: &Draft, files: &'a [NamedFile]) -> Vec<&'a NamedFile> {
    let taken: HashSet<&str> = source_layers(&draft.layers).filter_map(Layer::name).collect();
    files.iter().filter(|file| !taken.contains(file.name.as_str())).collect()
}

/// The layers that have names of source files.
fn source_layers(layers: &[Layer]) -> impl Iterator<Item = &Layer> {
    let types = [media_types::HEADER, media_types::JSON, media_types::FILE, media_types::LICENSE];
    layers.iter().filter(move |layer| types.contains(layer.media_type()))
}

fn is_weights(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    [".gguf", ".safetensors"].iter().any(|extension| lower.ends_with(extension))
}

/// Verifies every file whose identity is a digest, by reading it back from its blobs.
fn verify(library: &Library, layers: &[Layer], files: &[NamedFile]) -> Result<()> {
    let origin =
        layers.iter().find(|layer| *layer.media_type() == media_types::ORIGIN).context("there is no origin")?;
    let origin: Origin = serde_json::from_slice(&library.blobs().read(origin.digest(), MAX_DOCUMENT)?).internal()?;
    let open = library.opener();
    for file in files {
        let Some(expected) = expected_digest(file) else { continue };
        let found = match origin.files.iter().find(|from| from.name == file.name) {
            Some(from) => read_back(from, layers, &open, expected.algorithm()),
            None => match source_layers(layers).find(|layer| layer.name() == Some(&file.name)) {
                Some(layer) => open(layer.digest()).and_then(|blob| import::digest_of(&*blob, expected.algorithm())),
                // The file was left out.
                None => continue,
            },
        };
        let found = found.with_context(|| format!("cannot read `{}` back from its blobs", file.name))?;
        ensure_same(file, &found, &expected)?;
    }
    Ok(())
}

fn read_back(file: &OriginFile, layers: &[Layer], open: &Arc<OpenBlob>, algorithm: Algorithm) -> io::Result<Digest> {
    import::digest_of(&Composed::new(file, layers, Arc::clone(open))?, algorithm)
}

/// Converts a manifest with Ollama's tensor layers into a model. All blobs must be in the store and
/// are used unchanged; only the config is new.
pub(crate) fn adopt(
    library: &Library,
    manifest: &Manifest,
    name: &ModelRef,
    reference: &str,
    observer: &dyn Observer,
) -> Result<Created> {
    let key = name.tag_key().context("a new model needs a name with a tag, not a digest")?;
    let guard = library.guard();
    let tensors = library.catalogue(manifest)?;
    let document = |digest: &Digest| library.blobs().read(digest, MAX_DOCUMENT);
    let counts = tensors.iter().filter_map(|tensor| formats::dtype::element_count(&tensor.shape));
    let lode = LodeConfig {
        tensor_count: tensors.len() as u64,
        parameter_count: counts.fold(0, u64::saturating_add),
        source_format: "huggingface".to_owned(),
    };
    // Ollama's facts about the model stay. A config of another kind has none.
    let theirs = ModelConfig::parse(&document(&manifest.config().digest)?).unwrap_or_default();
    let draft = Draft {
        layers: manifest.layers().to_vec(),
        config: ModelConfig { lode: Some(lode), ..theirs },
        base: None,
        annotations: BTreeMap::from([
            (annotations::ORIGIN_MANIFEST.to_owned(), manifest.digest().to_string()),
            (annotations::ORIGIN_REFERENCE.to_owned(), reference.to_owned()),
        ]),
        parameters: serde_json::Map::new(),
        files: BTreeMap::new(),
        new: Amount::default(),
        shared: manifest.layers_of(media_types::TENSOR).map(|layer| Amount::of_blob(layer.size())).sum(),
    };
    draft.finish(library, &StoreTarget::streaming(library, &guard), &key, observer)
}

/// A hub and the connection to it.
#[derive(Clone, Debug)]
pub(crate) struct Hub {
    /// `https://huggingface.co`, or a mirror of it.
    pub(crate) address: String,
    pub(crate) endpoint: Endpoint,
}

/// Imports a model of a hub, under `name` or else the name of its reference.
pub(crate) fn pull_hub(
    library: &Library,
    hub: &Hub,
    reference: &HubReference,
    name: Option<ModelRef>,
    observer: &MeterObserver,
) -> Result<Created> {
    let requests = observer.requests();
    observer.status(format!("reading what is in {}", reference.repository()));
    let get = |url: &str, limit| requests.run(hub.endpoint.document(url, limit));
    let raw = get(&reference.listing_url(&hub.address), MAX_LISTING);
    let listing = Listing::parse(&raw.with_context(|| format!("cannot list `{}`", reference.repository()))?)?;
    let index = reference.index(&listing)?;
    let index = index.map(|file| get(&reference.file_url(&hub.address, &listing, &file.path), MAX_INDEX));
    let chosen = reference.choose(&listing, index.transpose()?.as_deref())?;
    let windows = Windows::for_workers();
    let open = |file: &HubFile| -> Result<NamedFile> {
        let url = reference.file_url(&hub.address, &listing, &file.path);
        let size = match file.size {
            Some(size) => size,
            None => requests.run(hub.endpoint.size(&url))?,
        };
        // Without a digest, the URL identifies the file: it contains the commit, so its bytes never
        // change.
        let identity = file.digest.map_or_else(|| url.clone(), |digest| digest.to_string());
        let source = hub.endpoint.file(&url, size, Some(identity))?;
        let source = RangeReader::new(source, requests.clone(), Arc::clone(&windows));
        Ok(NamedFile { name: file.path.clone(), source: Arc::new(source) })
    };
    let model = ExternalModel {
        name: match name {
            Some(name) => name,
            None => reference.model_ref()?,
        },
        files: chosen.iter().map(open).collect::<Result<_>>()?,
        kept: Vec::new(),
        manifest: None,
        config: ModelConfig::default(),
        reference: reference.at(&listing.commit),
    };
    pull_external(library, &model, observer)
}

#[cfg(test)]
mod tests;
