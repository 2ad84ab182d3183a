//! The source of a quantization: a stored model, or files.

use std::collections::HashSet;
use std::path::Path;

use content::operation::{Result, Unclassified};
use content::{Amount, Digest};
use import::{
    BlobPlan, ImportProgress, Inventory, NamedFile, Origin, Plan, Quantization, SideLayer, SourceFormat, SourceModel,
    StoredTensor,
};
use library::{Library, MAX_DOCUMENT, Model};
use manifests::{Layer, ModelConfig, media_types};
use serde_json::{Map, Value};
use store::Guard;

use super::QuantizeSpec;
use crate::source::Source;
use crate::target::StoreTarget;

/// The source and the facts about it.
pub(crate) struct Start {
    pub(crate) model: SourceModel,
    pub(crate) config: ModelConfig,
    /// Digest of the manifest, if the source has one.
    pub(crate) base: Option<Digest>,
    pub(crate) parameters: Map<String, Value>,
    /// Architecture, as the source names it.
    architecture: String,
    tensors: Vec<StoredTensor>,
    /// Inventory and import plan, if the source is not in the store.
    files: Option<(Inventory, Plan)>,
}

/// The layers of the new model that are not derived.
pub(crate) struct Others {
    /// Tensors that keep their encoding.
    pub(crate) tensors: Vec<Layer>,
    /// Kept blobs that were new.
    pub(crate) new: Amount,
    /// Kept blobs that the store already had.
    pub(crate) shared: Amount,
    /// All other layers.
    pub(crate) documents: Vec<Layer>,
}

impl Start {
    pub(crate) fn find(library: &Library, guard: &Guard, source: &Source) -> Result<Self> {
        match source {
            Source::Files(files) => Self::files(files),
            Source::Model(base) => Self::stored(library, &library.find_protected(guard, base)?),
        }
    }

    /// Returns a note about the source's files for the user.
    pub(crate) fn note(&self) -> Option<&str> {
        self.files.as_ref().and_then(|(inventory, _)| inventory.note.as_deref())
    }

    fn files(files: &[NamedFile]) -> Result<Self> {
        let inventory = import::inventory(files)?;
        let plan = import::plan(&inventory)?;
        let model = SourceModel::files(&inventory, &plan);
        Ok(Self {
            tensors: model.tensors()?,
            model,
            config: import::describe(&inventory),
            base: None,
            parameters: Map::new(),
            architecture: inventory.architecture.clone(),
            files: Some((inventory, plan)),
        })
    }

    fn stored(library: &Library, model: &Model) -> Result<Self> {
        let tensors = library.catalogue(&model.manifest)?;
        let parameters = model.parameters(library)?;
        let open = library.opener();
        let open = Box::new(move |digest: &Digest| open(digest));
        Ok(Self {
            tensors,
            model: SourceModel::stored(model.manifest.layers().to_vec(), open),
            base: Some(*model.manifest.digest()),
            parameters,
            architecture: model.parsed_facts.gguf_name().unwrap_or(&model.config.model_family).to_owned(),
            config: model.config.facts(),
            files: None,
        })
    }

    pub(crate) fn plan(&self, spec: &QuantizeSpec) -> Result<Quantization> {
        let layers = self.model.layers();
        Ok(Quantization::plan(&self.architecture, layers, &self.tensors, &spec.policy, spec.sources)?)
    }

    /// Returns the bytes of kept blobs that must be imported.
    pub(crate) fn kept_bytes(&self, quantization: &Quantization) -> u64 {
        if self.files.is_some() { kept(quantization).map(Layer::size).fold(0, u64::saturating_add) } else { 0 }
    }

    /// Ensures that all layers that are not derived are in the store.
    pub(crate) fn keep(
        &self,
        library: &Library,
        guard: &Guard,
        quantization: &Quantization,
        progress: &ImportProgress<'_>,
    ) -> Result<Others> {
        let Some((inventory, plan)) = &self.files else { return self.keep_stored(library, quantization) };
        let plan = rest_of(inventory, plan, quantization);
        let imported = import::write(inventory, &plan, &StoreTarget::new(library, guard)?, progress)?;
        let (tensors, documents): (Vec<Layer>, Vec<Layer>) =
            imported.layers.into_iter().partition(|layer| *layer.media_type() == media_types::TENSOR);
        let documents = documents.into_iter().filter(|layer| *layer.media_type() != media_types::ORIGIN).collect();
        Ok(Others { tensors, new: imported.new, shared: imported.shared, documents })
    }

    fn keep_stored(&self, library: &Library, quantization: &Quantization) -> Result<Others> {
        let is_gguf = import::gguf_header(self.model.layers(), self.model.open())?.is_some();
        let headers = if is_gguf { self.headers(library)? } else { HashSet::new() };
        let stays = |layer: &&Layer| {
            let (media_type, name) = (layer.media_type(), layer.name().unwrap_or_default());
            *media_type != media_types::TENSOR
                && *media_type != media_types::ORIGIN
                && (*media_type != media_types::HEADER || headers.contains(name))
                && !is_index(name)
        };
        let documents = self.model.layers().iter().filter(stays).cloned().collect();
        let tensors: Vec<Layer> = kept(quantization).cloned().collect();
        let shared = tensors.iter().map(|layer| Amount::of_blob(layer.size())).sum();
        Ok(Others { tensors, new: Amount::default(), shared, documents })
    }

    /// Returns the names of layers that are file headers. Other layers of the type are gaps between
    /// tensors.
    fn headers(&self, library: &Library) -> Result<HashSet<String>> {
        let layers = self.model.layers();
        let Some(origin) = layers.iter().find(|layer| *layer.media_type() == media_types::ORIGIN) else {
            // Without an origin document, nothing distinguishes headers from gaps, so all are kept.
            let headers = layers.iter().filter(|layer| *layer.media_type() == media_types::HEADER);
            return Ok(headers.filter_map(|layer| layer.name().map(str::to_owned)).collect());
        };
        let origin: Origin =
            serde_json::from_slice(&library.blobs().read(origin.digest(), MAX_DOCUMENT)?).internal()?;
        Ok(origin.files.into_iter().map(|file| file.name).collect())
    }
}

fn kept(quantization: &Quantization) -> impl Iterator<Item = &Layer> {
    quantization.blobs.iter().filter_map(|blob| match blob {
        BlobPlan::Keep(layer) => Some(layer),
        BlobPlan::Derive(_) => None,
    })
}

/// Returns the part of an import plan that is not derived. It omits how the source files were put
/// together, which no longer applies. The header of a GGUF file stays, because it contains the
/// tokenizer.
fn rest_of(inventory: &Inventory, plan: &Plan, quantization: &Quantization) -> Plan {
    let kept: HashSet<&str> = kept(quantization).filter_map(Layer::name).collect();
    let stays = |side: &&SideLayer| {
        (inventory.format == SourceFormat::Gguf || side.media_type != media_types::HEADER) && !is_index(&side.name)
    };
    Plan {
        blobs: plan.blobs.iter().filter(|blob| kept.contains(blob.name.as_str())).cloned().collect(),
        side: plan.side.iter().filter(stays).cloned().collect(),
        gaps: Vec::new(),
        origin: Origin { format: plan.origin.format.clone(), files: Vec::new() },
    }
}

/// Returns true if a file is an index of safetensors shards.
fn is_index(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|name| name.to_string_lossy().ends_with(".safetensors.index.json"))
}
