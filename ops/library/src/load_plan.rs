//! The load plan: everything that a runner needs to know of a model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use architectures::HeadLayout;
use content::Digest;
use content::operation::{Context, Result, Unclassified};
use content::{bail, ensure};
use formats::encoding::Role;
use import::{FactorOwner, Fitted, StoredPart, StoredTensor};
use manifests::{Layer, Manifest, media_types};
use protocol::{Array, Blob, ContextRequest, Document, ExpertOf, LoadRequest, LowRank, Reserved, Tensor};
use store::{BlobExtents, FileIdentity, Store};

use crate::error::Error;
use crate::library::Library;
use crate::load_files::{LoadFile, LoadFiles};
use crate::memory_need::MemoryNeed;
use crate::model::Model;
use crate::parsed_facts::{Described, ParsedFacts, Unknown};

/// A load request with the files that belong to it.
#[derive(Clone, Debug)]
pub struct ModelLoad {
    /// The request that the runner receives.
    pub request: LoadRequest,
    /// The files of [`LoadRequest::blobs`].
    pub files: LoadFiles,
    /// Memory that the runner allocates itself on each device, once [`assign_layers`] has assigned
    /// layers to devices.
    ///
    /// [`assign_layers`]: crate::assign_layers
    pub reserved: Option<Vec<Reserved>>,
}

/// Creates the load plan. It checks that every blob exists, so that a missing blob is reported here
/// and does not crash the runner.
pub fn load_plan(
    library: &Library,
    model: &Model,
    device: &str,
    cache: ContextRequest,
    reference: bool,
) -> Result<ModelLoad> {
    let described = match &*model.parsed_facts {
        ParsedFacts::Known(described) => described,
        ParsedFacts::Unknown(Unknown { reason, .. }) => {
            bail!(Error::CannotRun {
                name: model.name.clone(),
                reason: format!("{reason}; its tensors are stored and can be listed"),
            })
        }
    };
    let mut files = PlanFiles::of(library, &model.manifest)?;
    // Only tensors that the blueprint reads are loaded: none of towers for images and audio, and no
    // buffers.
    let reads = described.architecture.blueprint.reads();
    let mut tensors = library.catalogue(&model.manifest)?;
    let quantization = library.unsupported_quantization(&model.manifest, described, &tensors)?;
    let obstacle =
        if quantization.is_some() { quantization } else { library.unread(&model.manifest, described, &tensors)? };
    if let Some(reason) = obstacle {
        bail!(Error::CannotRun { name: model.name.clone(), reason });
    }
    tensors.retain(|tensor| reads.has(&tensor.name));
    let documents = library.documents(&model.manifest);
    let token_table = library.token_table(&documents).and_then(|path| files.add(path));
    let documents = documents.into_iter().map(|(name, digest)| {
        let blob = files.place(&digest)?;
        Ok(Document { name, blob })
    });
    let documents = documents.collect::<Result<_>>()?;
    let planned_tensors = tensors.iter().map(|tensor| files.planned(tensor)).collect::<Result<_>>()?;
    let planned_adapters = adapters(library, model, described, &tensors, &mut files)?;
    let PlanFiles { blobs, opened, .. } = files;
    let template = library.own_template(model)?;
    if template.is_none() && !model.config.renderer.is_empty() {
        let renderer = &model.config.renderer;
        tracing::warn!(model = model.name, renderer, "unknown renderer; using the template of the weights");
    }
    // The caller chooses the devices of layers; the supervisor of the runner sets `is_held` and
    // `deterministic`.
    let request = LoadRequest {
        version: protocol::VERSION,
        model: model.manifest.digest().to_string(),
        device: device.to_owned(),
        device_note: String::new(),
        layers: Vec::new(),
        is_held: false,
        context: cache.context,
        slots: cache.slots,
        kv_type: cache.kv_type,
        reference,
        deterministic: false,
        blueprint: serde_json::to_value(&described.architecture.blueprint).internal()?,
        blobs,
        tensors: planned_tensors,
        adapters: planned_adapters,
        documents,
        token_table,
        template,
    };
    Ok(ModelLoad { request, files: LoadFiles::new(&library.store, opened), reserved: None })
}

/// Returns the low-rank updates of the model's adapters, and adds their blobs to the plan.
fn adapters(
    library: &Library,
    model: &Model,
    described: &Described,
    tensors: &[StoredTensor],
    files: &mut PlanFiles,
) -> Result<Vec<LowRank>> {
    let not_run = || format!("model '{}' cannot be run", model.name);
    let adapters = library.adapters(&model.manifest).with_context(not_run)?;
    if adapters.is_empty() {
        return Ok(Vec::new());
    }
    let places = described.places(tensors);
    let folders = library.layout_of_folders(model, described)?;
    let mut planned = Vec::new();
    for adapter in &adapters {
        let fitted = adapter.fit(&places, model.parsed_facts.gguf_name()).with_context(not_run)?;
        planned.extend(files.low_ranks(&fitted, adapter.layout.or(folders))?);
    }
    Ok(planned)
}

/// Private memory of a runner that loads `model` with that KV cache, in bytes. The estimate does
/// not cover the reference mode, which expands all weights.
pub fn private_memory(model: &Model, cache: ContextRequest) -> u64 {
    // The runner keeps transposed factors as float32, which has up to four times the bytes.
    let adapters = model.manifest.layers_of(media_types::ADAPTER).map(Layer::size).fold(0, u64::saturating_add);
    // Embeddings beside conversations have one more sequence.
    let aside = ContextRequest { slots: cache.slots.saturating_add(1), ..cache };
    let need = MemoryNeed::of(model, aside);
    need.total().saturating_sub(need.weights).saturating_add(adapters.saturating_mul(4))
}

/// The blobs of a plan, each once.
struct PlanFiles {
    store: Store,
    /// Sizes of all blobs of the model, in bytes.
    sizes: HashMap<Digest, u64>,
    places: HashMap<Digest, usize>,
    /// Where blobs lie in other files; `None` for blobs with a file.
    extents: HashMap<Digest, Option<BlobExtents>>,
    /// The index of each file in which blobs lie.
    sources: HashMap<PathBuf, usize>,
    blobs: Vec<Blob>,
    /// The files of `blobs`.
    opened: Vec<LoadFile>,
}

impl PlanFiles {
    /// Creates an empty list, after checking that every blob of the model exists.
    fn of(library: &Library, manifest: &Manifest) -> Result<Self> {
        let mut sizes = HashMap::new();
        for layer in manifest.layers() {
            let (name, digest, expected) = (layer.name().unwrap_or("layer"), layer.digest(), layer.size());
            let size = library.store.blobs().size(digest)?;
            let Some(size) = size else {
                if let Some(lost) = library.store.blobs().missing_reason(digest)? {
                    return Err(lost.into());
                }
                bail!("blob `{digest}` of `{name}` is missing; create or pull the model again");
            };
            ensure!(
                size == expected,
                "blob `{digest}` of `{name}` has {size} bytes, its descriptor says {expected}; create or pull the model again"
            );
            sizes.insert(*digest, size);
        }
        Ok(Self {
            store: library.store.clone(),
            sizes,
            places: HashMap::new(),
            extents: HashMap::new(),
            sources: HashMap::new(),
            blobs: Vec::new(),
            opened: Vec::new(),
        })
    }

    /// Returns the index of a blob in the plan.
    fn place(&mut self, digest: &Digest) -> Result<usize> {
        if let Some(place) = self.places.get(digest) {
            return Ok(*place);
        }
        let size = *self.sizes.get(digest).with_context(|| format!("blob `{digest}` is not a layer of the model"))?;
        self.blobs.push(Blob { name: digest.to_string(), size, unchanged: None });
        self.opened.push(LoadFile::Blob(*digest));
        self.places.insert(*digest, self.blobs.len() - 1);
        Ok(self.blobs.len() - 1)
    }

    /// Adds a derived file and returns its index; `None` if the file no longer exists, since a load
    /// works without it.
    fn add(&mut self, path: PathBuf) -> Option<usize> {
        let size = path.metadata().ok()?.len();
        let name = path.file_name()?.to_string_lossy().into_owned();
        self.blobs.push(Blob { name, size, unchanged: None });
        self.opened.push(LoadFile::Derived(path));
        Some(self.blobs.len() - 1)
    }

    fn array(&mut self, part: &StoredPart) -> Result<Array> {
        let (blob, offset) = match self.in_source(part)? {
            Some(found) => found,
            None => (self.place(&part.blob)?, part.offset),
        };
        Ok(Array { blob, offset, size: part.size, dtype: part.dtype.name().to_owned() })
    }

    /// Returns the index of the file in which an array lies, and its offset there; `None` if its
    /// blob has a file. An array in several pieces needs a copy, which the load then makes.
    fn in_source(&mut self, part: &StoredPart) -> Result<Option<(usize, u64)>> {
        if !self.extents.contains_key(&part.blob) {
            self.extents.insert(part.blob, self.store.blobs().extents(&part.blob)?);
        }
        let Some(extents) = self.extents.get(&part.blob).and_then(Option::as_ref) else { return Ok(None) };
        let end = part.offset.saturating_add(part.size);
        let Some((file, offset)) = extents.locate(part.offset..end) else { return Ok(None) };
        if let Some(place) = self.sources.get(file.path()) {
            return Ok(Some((*place, offset)));
        }
        let FileIdentity { device, inode, size, modified, changed } = *file.identity();
        let unchanged = protocol::UnchangedFile { device, inode, modified, changed };
        self.blobs.push(Blob { name: file.path().display().to_string(), size, unchanged: Some(unchanged) });
        self.opened.push(LoadFile::Source(Arc::clone(file)));
        let place = self.blobs.len() - 1;
        self.sources.insert(file.path().to_owned(), place);
        Ok(Some((place, offset)))
    }

    /// Returns the location of a tensor's arrays.
    fn planned(&mut self, tensor: &StoredTensor) -> Result<Tensor> {
        let mut of = |role| tensor.part(role).map(|part| self.array(part)).transpose();
        let (scale, bias, global_scale) = (of(Role::Scale)?, of(Role::Bias)?, of(Role::GlobalScale)?);
        Ok(Tensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype(),
            group: tensor.group(),
            shape: tensor.shape.clone(),
            weight: self.array(&tensor.parts[0])?,
            scale,
            bias,
            global_scale,
        })
    }

    /// Returns the low-rank updates that adapters add to projections.
    fn low_ranks(&mut self, fitted: &[Fitted<'_>], layout: Option<HeadLayout>) -> Result<Vec<LowRank>> {
        let low_rank = |Fitted { weight, module, expert, rows, is_swapped }: &Fitted<'_>| {
            let joined = match module.owner {
                FactorOwner::Joined { experts, .. } => Some(experts),
                FactorOwner::Projection | FactorOwner::Stack => None,
            };
            Ok(LowRank {
                weight: serde_json::to_value(weight).internal()?,
                module: module.name.clone(),
                down: self.planned(&module.down)?,
                up: self.planned(&module.up)?,
                transposed: module.transposed,
                expert: expert.map(|index| ExpertOf { index, joined, is_swapped: *is_swapped }),
                rows: rows.map(serde_json::to_value).transpose().internal()?,
                layout: layout.map(|layout| layout.name().to_owned()),
                scale: module.scale,
            })
        };
        fitted.iter().map(low_rank).collect()
    }
}
