//! Creating a model: from files, or from another model with changes.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use content::{Descriptor, Digest, Expected, IngestId, MediaType};
use import::{Event, Fill, NamedFile, Target};
use manifests::config::RootFs;
use manifests::{Document, Layer, ManifestBuilder, ModelConfig, ModelRef, annotations, media_types};
use protocol::Message;
use serde_json::{Map, Value};
use store::Store;

use super::Library;
use super::adapters::{adapter_layers, check_adapters, staged};
use super::file_digests::{self, FileDigests};
use super::quantize::{Leased, QuantizeSpec, quantized};

/// How ingests of imports are called. They cannot be resumed, so they are removed when a daemon starts.
pub(crate) const INGEST_PREFIX: &str = "import-";

/// What to make a model from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Files by name, wherever their bytes are.
    Files(Vec<NamedFile>),
    /// Another model.
    Model(ModelRef),
}

impl Source {
    /// The files at a path.
    ///
    /// # Errors
    /// There is nothing that can be read.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        Ok(Self::Files(import::locate(path)?))
    }

    /// The source alone, and the files of adapters that an export has put beside it.
    ///
    /// # Errors
    /// The source is nothing but an adapter.
    pub(super) fn without_adapters(self) -> Result<(Self, Vec<NamedFile>)> {
        let Self::Files(files) = self else { return Ok((self, Vec::new())) };
        let (files, adapters) = import::split_adapters(files);
        let has = |name: &str| files.iter().any(|file| file.name == name);
        ensure!(
            !has("adapter_config.json") || has("config.json"),
            import::Error::Source(
                "this is an adapter, not a model: name its base with FROM and it with ADAPTER in a Modelfile"
                    .to_owned()
            )
        );
        Ok((Self::Files(files), adapters))
    }
}

/// What to create. What is `None` or empty is taken from the source.
#[derive(Clone, Debug)]
pub(crate) struct CreateSpec {
    pub(crate) name: ModelRef,
    pub(crate) source: Source,
    pub(crate) template: Option<String>,
    pub(crate) system: Option<String>,
    pub(crate) licenses: Vec<String>,
    pub(crate) parameters: Map<String, Value>,
    pub(crate) messages: Vec<Message>,
    /// Files of adapters, more than the source has.
    pub(crate) adapters: Vec<NamedFile>,
    /// How its tensors are to be encoded, where not as in the source.
    pub(crate) quantize: Option<QuantizeSpec>,
}

/// What a create has done.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    /// Tensor blobs and their bytes that were new.
    pub(crate) new: (u64, u64),
    /// Tensor blobs and their bytes that were there already.
    pub(crate) shared: (u64, u64),
}

/// Who is told how it goes.
pub(crate) trait Observer: Sync {
    /// A step begins.
    fn status(&self, status: String);
    /// That many bytes of tensors of so many are done.
    fn bytes(&self, done: u64, total: u64);
    /// Whether to go on.
    fn goes_on(&self) -> bool;
}

/// Creates a model; it has its name when this returns, and nothing of it is visible before.
pub(crate) fn create(library: &Library, spec: &CreateSpec, observer: &dyn Observer) -> Result<Created> {
    let key = spec.name.tag_key().context("a new model needs a name with a tag, not a digest")?;
    let _guard = library.store.guard();
    // For documents and adapters, which no other model is likely to have.
    let target = StoreTarget::streaming(library);
    let (source, exported) = spec.source.clone().without_adapters()?;
    let adapters = staged([exported, spec.adapters.clone()].concat(), library, &target)?;
    if let Source::Model(base) = &source {
        // Before hours of quantizing.
        check_adapters(&adapters, library, &library.find(base)?)?;
    }
    let mut draft = match (&spec.quantize, &source) {
        (Some(quantize), source) => quantized(library, source, quantize, &key, observer)?,
        (None, Source::Files(files)) => imported(library, files, &spec.name, observer)?,
        (None, Source::Model(base)) => derived(library, base)?,
    };
    draft.apply(spec, &target, observer)?;
    if !adapters.is_empty() {
        draft.adapt(&adapters, library, &target, observer)?;
    }
    let created = draft.finish(library, &target, &key, observer)?;
    if spec.quantize.is_some() {
        // The model has its name; a lease that stays costs a day of disk.
        if let Err(error) = Leased::end(library, &key) {
            tracing::warn!("the lease on what was derived stays: {error:#}");
        }
    }
    Ok(created)
}

/// A manifest before it is written.
pub(super) struct Draft {
    pub(super) layers: Vec<Layer>,
    pub(super) config: ModelConfig,
    pub(super) base: Option<Digest>,
    /// More annotations than every model has.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) parameters: Map<String, Value>,
    /// What source files hash to, where that is known.
    pub(super) files: FileDigests,
    pub(super) new: (u64, u64),
    pub(super) shared: (u64, u64),
}

fn imported(library: &Library, files: &[NamedFile], name: &ModelRef, observer: &dyn Observer) -> Result<Draft> {
    import_into(library, &StoreTarget::new(library)?, files, name, observer)
}

/// Imports files, wherever they are.
pub(super) fn import_into(
    library: &Library,
    target: &StoreTarget<'_>,
    files: &[NamedFile],
    name: &ModelRef,
    observer: &dyn Observer,
) -> Result<Draft> {
    let inventory = import::inventory(files)?;
    let plan = import::plan(&inventory)?;
    let total = plan.blobs.iter().map(import::PlannedBlob::size).sum();
    ensure_space(library, total)?;
    observer.status(format!("importing {name} ({} tensors)", inventory.tensors.len()));
    let progress = ImportProgress::new(observer, total);
    let imported = import::write(&inventory, &plan, target, &progress)?;
    observer.bytes(total, total);
    let known = inventory.files.iter().filter_map(|file| Some((file.name.clone(), file.source.digest()?)));
    Ok(Draft {
        files: known.collect(),
        layers: imported.layers,
        config: import::describe(&inventory),
        base: None,
        annotations: BTreeMap::new(),
        parameters: Map::new(),
        new: (imported.new_blobs, imported.new_bytes),
        shared: (imported.shared_blobs, imported.shared_bytes),
    })
}

/// An import needs its size again, unless it shares tensors, which is known only later: so this is refused only where
/// not even a tenth would fit. A disk that fills up later is an error of its own, and leaves nothing half-written.
pub(super) fn ensure_space(library: &Library, total: u64) -> Result<()> {
    let free = library.store.free_space()?;
    let home = library.store.home().display();
    ensure!(
        total / 10 <= free,
        "the model has {total} bytes, the disk of `{home}` has {free} bytes free; make room first"
    );
    Ok(())
}

fn derived(library: &Library, base: &ModelRef) -> Result<Draft> {
    let model = library.find(base)?;
    let parameters = model.parameters(library)?;
    let tensors = model.manifest.layers_of(media_types::TENSOR);
    let shared = tensors.fold((0, 0), |(count, bytes), layer| (count + 1, bytes + layer.size()));
    Ok(Draft {
        files: file_digests::recorded(library, model.manifest.digest())?,
        layers: model.manifest.layers().to_vec(),
        config: (*model.config).clone(),
        base: Some(*model.manifest.digest()),
        annotations: BTreeMap::new(),
        parameters,
        new: (0, 0),
        shared,
    })
}

impl Draft {
    /// Writes config and manifest and gives the model its name.
    pub(super) fn finish(
        mut self,
        library: &Library,
        target: &StoreTarget<'_>,
        key: &str,
        observer: &dyn Observer,
    ) -> Result<Created> {
        observer.status("writing manifest".to_owned());
        let manifest = self.manifest(target)?;
        let stored = target.bytes(media_types::MANIFEST, manifest.raw())?;
        ensure!(stored.digest == *manifest.digest(), "the manifest was changed on its way to the store");
        library.describe(manifest.digest(), &Document::parse(manifest.raw())?)?;
        // Before the name: a model whose tensors cannot be read takes nobody's place. And the first load need not read
        // the headers again.
        library.catalogue(&manifest)?;
        if !self.files.is_empty() {
            file_digests::record(library, manifest.digest(), &self.files)?;
        }
        library.store.set_tag(key, manifest.digest())?;
        tracing::info!(model = key, digest = %manifest.digest(), "created");
        Ok(Created { new: self.new, shared: self.shared })
    }

    /// Puts what the spec says in the place of what the source had.
    fn apply(&mut self, spec: &CreateSpec, target: &StoreTarget<'_>, observer: &dyn Observer) -> Result<()> {
        let mut replace = |media_type: MediaType, texts: &[String]| -> Result<()> {
            if texts.is_empty() {
                return Ok(());
            }
            // Files of the source have names: a licence among them stays.
            self.layers
                .retain(|layer| *layer.media_type() != media_type || layer.name().is_some_and(|n| !n.is_empty()));
            for text in texts {
                let descriptor = target.bytes(media_type.clone(), text.as_bytes())?;
                observer.status(format!("creating new layer {}", descriptor.digest));
                self.layers.push(Layer::new(descriptor));
            }
            Ok(())
        };
        replace(media_types::TEMPLATE, spec.template.as_slice())?;
        replace(media_types::SYSTEM, spec.system.as_slice())?;
        replace(media_types::LICENSE, &spec.licenses)?;
        if !spec.messages.is_empty() {
            replace(media_types::MESSAGES, &[serde_json::to_string(&spec.messages)?])?;
        }
        if !spec.parameters.is_empty() {
            self.parameters.extend(spec.parameters.clone());
            replace(media_types::PARAMS, &[serde_json::to_string(&self.parameters)?])?;
        }
        Ok(())
    }

    /// Takes adapters that fit; their files are blobs.
    fn adapt(
        &mut self,
        files: &[NamedFile],
        library: &Library,
        target: &StoreTarget<'_>,
        observer: &dyn Observer,
    ) -> Result<()> {
        let layers = adapter_layers(files, &self.layers, target, observer)?;
        self.layers.extend(layers);
        let manifest = self.manifest(target)?;
        library.adapters(&manifest, &self.config, &library.catalogue(&manifest)?)?;
        Ok(())
    }

    fn manifest(&mut self, target: &StoreTarget<'_>) -> Result<manifests::Manifest> {
        let diff_ids = self.layers.iter().map(|layer| layer.digest().to_string()).collect();
        self.config.rootfs = RootFs { kind: "layers".to_owned(), diff_ids };
        let config = target.bytes(media_types::CONFIG, &self.config.to_bytes()?)?;
        let lode = self.config.lode.clone().unwrap_or_default();
        let mut notes = BTreeMap::from([
            (annotations::ARCHITECTURE.to_owned(), self.config.model_family.clone()),
            (annotations::PARAMETERS.to_owned(), lode.parameter_count.to_string()),
            (annotations::QUANTIZATION.to_owned(), self.config.file_type.clone()),
        ]);
        notes.extend(self.annotations.clone());
        notes.extend(self.base.map(|base| (annotations::BASE.to_owned(), base.to_string())));
        Ok(ManifestBuilder { config, layers: self.layers.clone(), annotations: notes }.build()?)
    }
}

/// The store as an importer's target.
pub(super) struct StoreTarget<'a> {
    store: &'a Store,
    /// Names and sizes of all layers of all models: what an import may find again.
    known: HashSet<(String, u64)>,
    /// The kind of the notes that say what became of a source.
    note: &'static str,
    /// Sources that were met and what they became; those from before and those from now.
    made: Mutex<Vec<(Digest, Digest)>>,
}

/// The kind of note that says which blob was made from a source. It is a shortcut: losing it costs reading the source
/// again.
const SOURCE_NOTE: &str = "source-blob";
/// The kind of note that says which blob was derived; it is about the key of the derivation, which is no blob. Losing it
/// costs computing again.
const DERIVED_NOTE: &str = "derived";

impl<'a> StoreTarget<'a> {
    /// For sources that are read as fast as the store.
    pub(super) fn new(library: &'a Library) -> Result<Self> {
        let mut known = HashSet::new();
        for tag in library.store.tags()? {
            // A model that cannot be read only costs a comparison.
            let Ok(manifest) = library.manifest(&tag.digest) else { continue };
            known.extend(
                manifest
                    .layers_of(media_types::TENSOR)
                    .filter_map(|layer| Some((layer.name()?.to_owned(), layer.size()))),
            );
        }
        Ok(Self { known, ..Self::streaming(library) })
    }

    /// For sources that are far away: nothing is read twice in the hope of not having to write it.
    pub(super) fn streaming(library: &'a Library) -> Self {
        Self { store: &library.store, known: HashSet::new(), note: SOURCE_NOTE, made: Mutex::default() }
    }

    /// For blobs that are derived from others.
    pub(super) fn deriving(library: &'a Library) -> Self {
        Self { note: DERIVED_NOTE, ..Self::streaming(library) }
    }

    /// The blobs whose sources can be named, so that another attempt need not read them again.
    pub(super) fn resumable(&self) -> Vec<Digest> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, blob)| *blob).collect()
    }

    /// Takes back what was remembered of the sources of this import: they are not what they should be.
    pub(super) fn forget(&self) {
        for (source, _) in self.made.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Err(error) = self.store.set_note(self.note, &source, b"") {
                tracing::warn!("a damaged source stays remembered: {error}");
            }
        }
    }

    /// Whether the store has a blob of that size.
    pub(super) fn holds(&self, digest: &Digest, size: u64) -> Result<bool> {
        Ok(self.store.blob_size(digest)? == Some(size))
    }

    /// Stores a small blob.
    pub(super) fn bytes(&self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let (digest, _) = self.write(bytes.len() as u64, &mut |sink| sink.write_all(bytes))?;
        Ok(Descriptor { media_type, digest, size: bytes.len() as u64 })
    }

    pub(super) fn write(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = IngestId::parse(&format!("{INGEST_PREFIX}{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        let mut ingest = self.store.start_ingest(&id, Expected::Size(size))?;
        if let Err(error) = fill(&mut ingest) {
            // The first failure is the one to tell.
            let _ = ingest.cancel();
            return Err(error.into());
        }
        let digest = ingest.digest();
        if ingest.offset() == size && self.holds(&digest, size)? {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        match ingest.commit() {
            Ok((digest, _)) => Ok((digest, true)),
            Err(error) => {
                // Nobody resumes it; what it wrote would only fill the disk further.
                if let Err(error) = self.store.discard_ingest(&id) {
                    tracing::warn!("a failed ingest stays: {error}");
                }
                Err(error.into())
            }
        }
    }
}

impl Target for StoreTarget<'_> {
    fn may_have(&self, name: &str, size: u64) -> bool {
        self.known.contains(&(name.to_owned(), size))
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.holds(digest, size)?)
    }

    fn put(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Box<dyn std::error::Error + Send + Sync>> {
        self.write(size, fill).map_err(|error| match error.downcast::<std::io::Error>() {
            Ok(io) => Box::new(io) as Box<dyn std::error::Error + Send + Sync>,
            Err(other) => other.into(),
        })
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        let note = self.store.note(self.note, source).ok()??;
        let blob = std::str::from_utf8(&note).ok()?.parse().ok()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, blob));
        Some(blob)
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, *blob));
        if let Err(error) = self.store.set_note(self.note, source, blob.to_string().as_bytes()) {
            tracing::warn!("another attempt will read a tensor again: {error}");
        }
    }
}

/// Adds up what an import tells, for an observer.
pub(super) struct ImportProgress<'a> {
    observer: &'a dyn Observer,
    total: u64,
    done: AtomicU64,
}

impl<'a> ImportProgress<'a> {
    pub(super) fn new(observer: &'a dyn Observer, total: u64) -> Self {
        Self { observer, total, done: AtomicU64::new(0) }
    }
}

impl import::Progress for ImportProgress<'_> {
    fn event(&self, event: Event<'_>) -> bool {
        if let Event::Bytes(count) = event {
            let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
            self.observer.bytes(done.min(self.total), self.total);
        }
        self.observer.goes_on()
    }
}
