//! Creating a model: from files, or from another model with changes.

use std::collections::BTreeMap;

use content::operation::{Context, Result, Unclassified};
use content::{Amount, MediaType, Observer};
use import::NamedFile;
use library::Library;
use manifests::{Layer, ModelRef, media_types};
use protocol::Message;
use serde_json::{Map, Value};
use store::Guard;

use crate::adapters::{adapter_layers, staged};
use crate::draft::{Created, Draft, import_into};
use crate::quantize::{Leased, QuantizeSpec, quantized};
use crate::source::Source;
use crate::target::StoreTarget;

/// Specification of a new model. Fields that are `None` or empty keep the value of the source.
#[derive(Clone, Debug)]
pub struct CreateSpec {
    /// Name of the model, with a tag.
    pub name: ModelRef,
    /// The files or the model to create it from.
    pub source: Source,
    /// Chat template, in Jinja or Go's template language.
    pub template: Option<String>,
    /// Ollama's name of a built-in renderer that replaces the template.
    pub renderer: Option<String>,
    /// Ollama's name of a built-in parser for the model's output.
    pub parser: Option<String>,
    /// System prompt.
    pub system: Option<String>,
    /// License texts.
    pub licenses: Vec<String>,
    /// Default generation parameters.
    pub parameters: Map<String, Value>,
    /// Messages that every conversation starts with.
    pub messages: Vec<Message>,
    /// Files of adapters to add to the adapters of the source.
    pub adapters: Vec<NamedFile>,
    /// Whether tensors stay in the files of the source, which are not copied.
    pub in_place: bool,
    /// How to encode the tensors; `None` keeps the encoding of the source.
    pub quantize: Option<QuantizeSpec>,
}

/// Creates a model. The model has its name when this returns; nothing of it is visible before.
///
/// # Errors
/// The source is not a model, a part of it cannot be read, or the disk is full.
pub fn create(library: &Library, spec: &CreateSpec, observer: &dyn Observer) -> Result<Created> {
    let key = spec.name.tag_key().context("a new model needs a name with a tag, not a digest")?;
    let guard = library.guard();
    // The target for documents and adapters, which other models rarely share.
    let target = StoreTarget::streaming(library, &guard);
    let (source, exported) = spec.source.clone().without_adapters()?;
    let adapters = staged([exported, spec.adapters.clone()].concat(), library, &target)?;
    // Checks the adapters before hours of importing or quantizing.
    match &source {
        Source::Model(base) => library.check_adapters(&adapters, &library.find(base)?)?,
        Source::Files(_) => drop(import::adapters(&adapters)?),
    }
    let mut draft = match (&spec.quantize, &source) {
        (Some(quantize), source) => quantized(library, &guard, (source, quantize), &key, observer)?,
        (None, Source::Files(files)) => imported(library, &guard, files, spec, observer)?,
        (None, Source::Model(base)) => derived(library, &guard, base)?,
    };
    apply(&mut draft, spec, &target, observer)?;
    if !adapters.is_empty() {
        adapt(&mut draft, &adapters, library, &target, observer)?;
    }
    let created = draft.finish(library, &target, &key, observer)?;
    if spec.quantize.is_some() {
        // The model has its name. A lease that remains only costs disk space for a day.
        if let Err(error) = Leased::end(library, &key) {
            tracing::warn!("the lease on what was derived stays: {error:#}");
        }
    }
    Ok(created)
}

fn imported(
    library: &Library,
    guard: &Guard,
    files: &[NamedFile],
    spec: &CreateSpec,
    observer: &dyn Observer,
) -> Result<Draft> {
    let inventory = import::inventory(files)?;
    if !spec.in_place {
        return import_into(library, &StoreTarget::new(library, guard)?, (files, &inventory), &spec.name, observer);
    }
    let target = StoreTarget::in_place(library, guard);
    let draft = import_into(library, &target, (files, &inventory), &spec.name, observer)?;
    if target.has_clones() {
        observer.status("the store has a clone of the files: they may be changed or removed".to_owned());
    }
    Ok(draft)
}

fn derived(library: &Library, guard: &Guard, base: &ModelRef) -> Result<Draft> {
    let model = library.find_complete(guard, base)?;
    let parameters = model.parameters(library)?;
    let tensors = model.manifest.layers_of(media_types::TENSOR);
    let shared = tensors.map(|layer| Amount::of_blob(layer.size())).sum();
    Ok(Draft {
        files: library.file_digests(model.manifest.digest()),
        layers: model.manifest.layers().to_vec(),
        config: model.config.facts(),
        base: Some(*model.manifest.digest()),
        annotations: BTreeMap::new(),
        parameters,
        new: Amount::default(),
        shared,
    })
}

/// Replaces the parts of the source that the specification sets.
fn apply(draft: &mut Draft, spec: &CreateSpec, target: &StoreTarget<'_>, observer: &dyn Observer) -> Result<()> {
    let mut replace = |media_type: MediaType, texts: &[String]| -> Result<()> {
        if texts.is_empty() {
            return Ok(());
        }
        // Layers with a name are files of the source, such as a license file, and stay.
        draft.layers.retain(|layer| *layer.media_type() != media_type || layer.name().is_some_and(|n| !n.is_empty()));
        for text in texts {
            let descriptor = target.bytes(media_type.clone(), text.as_bytes())?;
            observer.status(format!("creating new layer {}", descriptor.digest));
            draft.layers.push(Layer::new(descriptor));
        }
        Ok(())
    };
    replace(media_types::TEMPLATE, spec.template.as_slice())?;
    replace(media_types::SYSTEM, spec.system.as_slice())?;
    replace(media_types::LICENSE, &spec.licenses)?;
    if !spec.messages.is_empty() {
        replace(media_types::MESSAGES, &[serde_json::to_string(&spec.messages).internal()?])?;
    }
    if !spec.parameters.is_empty() {
        draft.parameters.extend(spec.parameters.clone());
        replace(media_types::PARAMS, &[serde_json::to_string(&draft.parameters).internal()?])?;
    }
    if spec.renderer.is_some() || spec.template.is_some() {
        // A template in the specification takes effect even if the source has a renderer.
        draft.config.renderer = spec.renderer.clone().unwrap_or_default();
    }
    if let Some(parser) = &spec.parser {
        draft.config.parser.clone_from(parser);
    }
    Ok(())
}

/// Adds adapters to the draft and checks that they fit. `files` are already blobs.
fn adapt(
    draft: &mut Draft,
    files: &[NamedFile],
    library: &Library,
    target: &StoreTarget<'_>,
    observer: &dyn Observer,
) -> Result<()> {
    let layers = adapter_layers(files, &draft.layers, target, observer)?;
    draft.layers.extend(layers);
    let manifest = draft.manifest(target)?;
    library.check_own_adapters(&manifest)?;
    Ok(())
}
