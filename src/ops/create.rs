//! Creating a model: from files, or from another model with changes.

mod target;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use content::{Digest, MediaType};
use import::NamedFile;
use manifests::config::RootFs;
use manifests::{Document, Layer, ManifestBuilder, ModelConfig, ModelRef, annotations, media_types};
use protocol::Message;
use serde_json::{Map, Value};

use super::Library;
use super::adapters::{adapter_layers, check_adapters, staged};
use super::file_digests::{self, FileDigests};
use super::quantize::{Leased, QuantizeSpec, quantized};
pub(super) use target::{ImportProgress, StoreTarget};

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
    // Before hours of importing or quantizing.
    match &source {
        Source::Model(base) => check_adapters(&adapters, library, &library.find(base)?)?,
        Source::Files(_) => drop(import::adapters(&adapters)?),
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
        config: model.config.facts(),
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
        library.adapters(&manifest, &library.understood(&manifest)?, &library.catalogue(&manifest)?)?;
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
