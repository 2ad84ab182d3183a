//! Creating a model: from files, or from another model with changes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use content::MediaType;
use import::NamedFile;
use library::{Library, Observer};
use manifests::{Layer, ModelRef, media_types};
use protocol::Message;
use serde_json::{Map, Value};

use crate::adapters::{adapter_layers, staged};
use crate::draft::{Created, Draft, import_into};
use crate::quantize::{Leased, QuantizeSpec, quantized};
use crate::source::Source;
use crate::target::StoreTarget;

/// What to create. What is `None` or empty is taken from the source.
#[derive(Clone, Debug)]
pub struct CreateSpec {
    /// What it is to be called; with a tag.
    pub name: ModelRef,
    /// What it is made from.
    pub source: Source,
    /// How a conversation becomes a prompt, in Jinja or Go's language.
    pub template: Option<String>,
    /// What makes prompts in the place of a template, by Ollama's name for it.
    pub renderer: Option<String>,
    /// What reads answers, by Ollama's name for it.
    pub parser: Option<String>,
    /// What precedes conversations.
    pub system: Option<String>,
    /// Texts of licences.
    pub licenses: Vec<String>,
    /// With which it generates, where a request does not say.
    pub parameters: Map<String, Value>,
    /// What every conversation begins with.
    pub messages: Vec<Message>,
    /// Files of adapters, more than the source has.
    pub adapters: Vec<NamedFile>,
    /// How its tensors are to be encoded, where not as in the source.
    pub quantize: Option<QuantizeSpec>,
}

/// Creates a model; it has its name when this returns, and nothing of it is visible before.
///
/// # Errors
/// The source is none, something of it cannot be read, or the disk is full.
pub fn create(library: &Library, spec: &CreateSpec, observer: &dyn Observer) -> Result<Created> {
    let key = spec.name.tag_key().context("a new model needs a name with a tag, not a digest")?;
    let _guard = library.store.guard();
    // For documents and adapters, which no other model is likely to have.
    let target = StoreTarget::streaming(library);
    let (source, exported) = spec.source.clone().without_adapters()?;
    let adapters = staged([exported, spec.adapters.clone()].concat(), library, &target)?;
    // Before hours of importing or quantizing.
    match &source {
        Source::Model(base) => library.check_adapters(&adapters, &library.find(base)?)?,
        Source::Files(_) => drop(import::adapters(&adapters)?),
    }
    let mut draft = match (&spec.quantize, &source) {
        (Some(quantize), source) => quantized(library, source, quantize, &key, observer)?,
        (None, Source::Files(files)) => imported(library, files, &spec.name, observer)?,
        (None, Source::Model(base)) => derived(library, base)?,
    };
    apply(&mut draft, spec, &target, observer)?;
    if !adapters.is_empty() {
        adapt(&mut draft, &adapters, library, &target, observer)?;
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

fn imported(library: &Library, files: &[NamedFile], name: &ModelRef, observer: &dyn Observer) -> Result<Draft> {
    let inventory = import::inventory(files)?;
    import_into(library, &StoreTarget::new(library)?, (files, &inventory), name, observer)
}

fn derived(library: &Library, base: &ModelRef) -> Result<Draft> {
    let model = library.find_whole(base)?;
    let parameters = model.parameters(library)?;
    let tensors = model.manifest.layers_of(media_types::TENSOR);
    let shared = tensors.fold((0, 0), |(count, bytes), layer| (count + 1, bytes + layer.size()));
    Ok(Draft {
        files: library.file_digests(model.manifest.digest()),
        layers: model.manifest.layers().to_vec(),
        config: model.config.facts(),
        base: Some(*model.manifest.digest()),
        annotations: BTreeMap::new(),
        parameters,
        new: (0, 0),
        shared,
    })
}

/// Puts what the spec says in the place of what the source had.
fn apply(draft: &mut Draft, spec: &CreateSpec, target: &StoreTarget<'_>, observer: &dyn Observer) -> Result<()> {
    let mut replace = |media_type: MediaType, texts: &[String]| -> Result<()> {
        if texts.is_empty() {
            return Ok(());
        }
        // Files of the source have names: a licence among them stays.
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
        replace(media_types::MESSAGES, &[serde_json::to_string(&spec.messages)?])?;
    }
    if !spec.parameters.is_empty() {
        draft.parameters.extend(spec.parameters.clone());
        replace(media_types::PARAMS, &[serde_json::to_string(&draft.parameters)?])?;
    }
    if spec.renderer.is_some() || spec.template.is_some() {
        // A template that somebody writes is to count, whatever the source was talked with.
        draft.config.renderer = spec.renderer.clone().unwrap_or_default();
    }
    if let Some(parser) = &spec.parser {
        draft.config.parser.clone_from(parser);
    }
    Ok(())
}

/// Takes adapters that fit; their files are blobs.
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
