//! The load plan: what a runner is told about a model.

use anyhow::{Context, Result, bail, ensure};
use content::Digest;
use formats::encoding::Role;
use import::{Adapter, StoredPart, StoredTensor};
use manifests::{Manifest, media_types};
use protocol::{Array, ContextRequest, Document, LoadRequest, LowRank, Tensor};

use super::{Library, Model, Understood};

/// Makes the plan. Every blob is looked at, so that a missing one is named here and not found by a crash.
pub(crate) fn load_plan(
    library: &Library,
    model: &Model,
    device: &str,
    cache: ContextRequest,
    reference: bool,
) -> Result<LoadRequest> {
    let described = match &*model.understood {
        Understood::Known(described) => described,
        Understood::Unknown(reason) => {
            bail!("model '{}' cannot be run: {reason}; its tensors are stored and can be listed", model.name)
        }
    };
    for layer in model.manifest.layers() {
        let size = library.store.blob_size(layer.digest())?;
        let (name, digest) = (layer.name().unwrap_or("layer"), layer.digest());
        let size = size.with_context(|| format!("blob `{digest}` of `{name}` is missing; create the model again"))?;
        let expected = layer.size();
        ensure!(
            size == expected,
            "blob `{digest}` of `{name}` has {size} bytes, its descriptor says {expected}; create the model again"
        );
    }
    let tensors = library.catalogue(&model.manifest)?;
    if let Some(reason) = import::obstacle(&tensors) {
        bail!("model '{}' cannot be run: {reason}", model.name);
    }
    let documents = documents(library, &model.manifest)?;
    let adapters = library.adapters(&model.manifest, &model.understood, &tensors);
    let adapters = adapters.with_context(|| format!("model '{}' cannot be run", model.name))?;
    Ok(LoadRequest {
        version: protocol::VERSION,
        model: model.manifest.digest().to_string(),
        device: device.to_owned(),
        context: cache.context,
        slots: cache.slots,
        kv_type: cache.kv_type,
        reference,
        blueprint: serde_json::to_value(&described.architecture.blueprint)?,
        tensors: tensors.iter().map(|tensor| planned(library, tensor)).collect(),
        adapters: adapters.iter().flat_map(|adapter| low_ranks(library, adapter)).collect(),
        documents,
        template: jinja(model.layer_text(library, media_types::TEMPLATE)?, &model.name),
    })
}

/// The files that are not tensors. A whole GGUF file is one too: it begins with its header.
pub(super) fn documents(library: &Library, manifest: &Manifest) -> Result<Vec<Document>> {
    let kept = [media_types::JSON, media_types::FILE, media_types::HEADER];
    let document = |name: &str, digest: &Digest| Document { name: name.to_owned(), path: library.store.path(digest) };
    let layers = manifest.layers().iter().filter(|layer| kept.contains(layer.media_type()));
    let layers = layers.map(|layer| document(layer.name().unwrap_or_default(), layer.digest()));
    let files = library.whole_files(manifest)?;
    let files = files.iter().filter_map(|file| Some(document(&file.name, &file.source.digest()?)));
    Ok(layers.chain(files).collect())
}

/// Where the arrays of a tensor are.
fn planned(library: &Library, tensor: &StoredTensor) -> Tensor {
    let array = |part: &StoredPart| Array {
        path: library.store.path(&part.blob),
        offset: part.offset,
        size: part.size,
        dtype: part.dtype.name().to_owned(),
    };
    let of = |role| tensor.part(role).map(array);
    Tensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype(),
        group: tensor.group(),
        shape: tensor.shape.clone(),
        weight: array(&tensor.parts[0]),
        scale: of(Role::Scale),
        bias: of(Role::Bias),
        global_scale: of(Role::GlobalScale),
    }
}

/// What an adapter adds to each projection.
fn low_ranks<'a>(library: &'a Library, adapter: &'a Adapter) -> impl Iterator<Item = LowRank> + 'a {
    adapter.modules.iter().map(move |module| LowRank {
        module: module.name.clone(),
        down: planned(library, &module.down),
        up: planned(library, &module.up),
        transposed: module.transposed,
        layout: adapter.layout.name().to_owned(),
        scale: module.scale,
    })
}

/// The model's own template as the runner is to use it.
fn jinja(template: Option<String>, model: &str) -> Option<String> {
    if template.as_deref().is_some_and(is_go) {
        tracing::warn!(model, "its template is in Go's template language; the one that came with the weights is used");
        return None;
    }
    template
}

/// Models of Ollama have templates in Go's language, which runners do not read. Where there is one the template of the
/// weights' own files is used.
pub(super) fn is_go(template: &str) -> bool {
    ["{{ .", "{{.", "{{- .", "{{- if .", "{{ if .", "{{- range", "{{ range"].iter().any(|mark| template.contains(mark))
}
