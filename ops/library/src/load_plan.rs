//! The load plan: what a runner is told about a model.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use architectures::HeadLayout;
use content::Digest;
use formats::encoding::Role;
use import::{FactorOwner, Fitted, StoredPart, StoredTensor};
use manifests::{Layer, Manifest, media_types};
use protocol::{Array, Blob, ContextRequest, Document, ExpertOf, LoadRequest, LowRank, Tensor};
use scheduler::{LoadPlan, PrivateMemory};

use crate::error::Error;
use crate::library::Library;
use crate::memory_need::MemoryNeed;
use crate::model::Model;
use crate::understood::{Understood, Unknown};

/// Makes the plan. Every blob is looked at, so that a missing one is named here and not found by a crash.
pub fn load_plan(
    library: &Library,
    model: &Model,
    device: &str,
    cache: ContextRequest,
    reference: bool,
) -> Result<LoadPlan> {
    let described = match &*model.understood {
        Understood::Known(described) => described,
        Understood::Unknown(Unknown { reason, .. }) => {
            bail!(Error::CannotRun {
                name: model.name.clone(),
                reason: format!("{reason}; its tensors are stored and can be listed"),
            })
        }
    };
    let mut files = Files::of(library, &model.manifest)?;
    // What sees or hears is no business of the decoder's, nor are buffers.
    let reads = described.architecture.blueprint.reads();
    let mut tensors = library.catalogue(&model.manifest)?;
    if let Some(reason) = library.quantization_obstacle(&model.manifest, described, &tensors)? {
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
    let not_run = || format!("model '{}' cannot be run", model.name);
    let adapters = library.adapters(&model.manifest).with_context(not_run)?;
    let planned_tensors = tensors.iter().map(|tensor| files.planned(tensor)).collect::<Result<_>>()?;
    let mut planned_adapters = Vec::new();
    if !adapters.is_empty() {
        let places = described.places(&tensors);
        let folders = library.layout_of_folders(model, described)?;
        for adapter in &adapters {
            let fitted = adapter.fit(&places, model.understood.gguf_name()).with_context(not_run)?;
            planned_adapters.extend(files.low_ranks(&fitted, adapter.layout.or(folders))?);
        }
    }
    let Files { blobs, paths, .. } = files;
    let template = library.own_template(model)?;
    if template.is_none() && !model.config.renderer.is_empty() {
        let renderer = &model.config.renderer;
        tracing::warn!(
            model = model.name,
            renderer,
            "the renderer is not known here: the template of the weights is taken"
        );
    }
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
        blueprint: serde_json::to_value(&described.architecture.blueprint)?,
        blobs,
        tensors: planned_tensors,
        adapters: planned_adapters,
        documents,
        token_table,
        template,
    };
    Ok(LoadPlan { request, files: paths, private: (!reference).then(|| private_memory(model)), held: None })
}

/// What a runner of the model takes for itself. The reference mode expands all weights and is not planned for.
fn private_memory(model: &Model) -> PrivateMemory {
    let model = model.clone();
    // Factors that lie the other way round are turned, and are float32 then.
    let adapters = model.manifest.layers_of(media_types::ADAPTER).map(Layer::size).fold(0, u64::saturating_add);
    let adapters = adapters.saturating_mul(4);
    PrivateMemory::new(move |cache| {
        // An embedding beside conversations has a sequence of its own.
        let aside = ContextRequest { slots: cache.slots.saturating_add(1), ..cache };
        let need = MemoryNeed::of(&model, aside);
        need.total().saturating_sub(need.weights).saturating_add(adapters)
    })
}

/// The blobs that a plan names, each once.
struct Files<'a> {
    library: &'a Library,
    /// Of all blobs of the model, in bytes.
    sizes: HashMap<Digest, u64>,
    places: HashMap<Digest, usize>,
    blobs: Vec<Blob>,
    paths: Vec<PathBuf>,
}

impl<'a> Files<'a> {
    /// None yet. Every blob of the model is looked at.
    fn of(library: &'a Library, manifest: &Manifest) -> Result<Self> {
        let mut sizes = HashMap::new();
        for layer in manifest.layers() {
            let (name, digest, expected) = (layer.name().unwrap_or("layer"), layer.digest(), layer.size());
            let size = library.store.blob_size(digest)?;
            let size = size
                .with_context(|| format!("blob `{digest}` of `{name}` is missing; create or pull the model again"))?;
            ensure!(
                size == expected,
                "blob `{digest}` of `{name}` has {size} bytes, its descriptor says {expected}; create or pull the model again"
            );
            sizes.insert(*digest, size);
        }
        Ok(Self { library, sizes, places: HashMap::new(), blobs: Vec::new(), paths: Vec::new() })
    }

    /// The place of a blob among those of the plan.
    fn place(&mut self, digest: &Digest) -> Result<usize> {
        if let Some(place) = self.places.get(digest) {
            return Ok(*place);
        }
        let size = *self.sizes.get(digest).with_context(|| format!("blob `{digest}` is no layer of the model"))?;
        self.blobs.push(Blob { name: digest.to_string(), size });
        self.paths.push(self.library.store.path(digest));
        self.places.insert(*digest, self.blobs.len() - 1);
        Ok(self.blobs.len() - 1)
    }

    /// Adds a derived file; its place. A load does without one that has gone.
    fn add(&mut self, path: PathBuf) -> Option<usize> {
        let size = path.metadata().ok()?.len();
        let name = path.file_name()?.to_string_lossy().into_owned();
        self.blobs.push(Blob { name, size });
        self.paths.push(path);
        Some(self.blobs.len() - 1)
    }

    fn array(&mut self, part: &StoredPart) -> Result<Array> {
        let blob = self.place(&part.blob)?;
        Ok(Array { blob, offset: part.offset, size: part.size, dtype: part.dtype.name().to_owned() })
    }

    /// Where the arrays of a tensor are.
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

    /// What an adapter adds to each projection.
    fn low_ranks(&mut self, fitted: &[Fitted<'_>], layout: Option<HeadLayout>) -> Result<Vec<LowRank>> {
        let low_rank = |Fitted { weight, module, expert, rows, is_swapped }: &Fitted<'_>| {
            let joined = match module.owner {
                FactorOwner::Joined { experts, .. } => Some(experts),
                FactorOwner::Projection | FactorOwner::Stack => None,
            };
            Ok(LowRank {
                weight: serde_json::to_value(weight)?,
                module: module.name.clone(),
                down: self.planned(&module.down)?,
                up: self.planned(&module.up)?,
                transposed: module.transposed,
                expert: expert.map(|index| ExpertOf { index, joined, is_swapped: *is_swapped }),
                rows: rows.map(serde_json::to_value).transpose()?,
                layout: layout.map(|layout| layout.name().to_owned()),
                scale: module.scale,
            })
        };
        fitted.iter().map(low_rank).collect()
    }
}
