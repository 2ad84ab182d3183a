//! The architecture of a model, derived from the documents of its source. Lode's config is not
//! used, because it is untrusted and may come from an older build that supported less.

use std::sync::Arc;

use architectures::{Architecture, Document, Fact, Pictures, Sizes, TensorNames, describe};
use content::operation::{Context, Result};
use content::{Descriptor, Hasher};
use content::{bail, ensure};
use estimate::exact::{Decoder, Tokenizer};
use formats::Gguf;
use import::{Inventory, MAX_GGUF_HEADER, ReadAt};
use manifests::{Layer, Manifest, media_types};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config_documents::ConfigDocuments;
use crate::limits::MAX_DOCUMENT;

/// Opens a blob in the store or at a registry; the text is its name in the manifest.
pub type Open<'a> = dyn Fn(&str, &Descriptor) -> Arc<dyn ReadAt> + 'a;

/// The result of deriving a model's architecture from its source.
#[derive(Clone, Debug)]
pub enum ParsedFacts {
    /// The architecture is supported. The quantization may still prevent a run.
    Known(Box<Described>),
    /// The model can only be stored and listed.
    Unknown(Unknown),
}

/// A model that cannot be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unknown {
    /// Why it cannot be run.
    pub reason: String,
    /// Architecture as its source names it; empty if unknown.
    pub architecture: String,
    /// Sizes in its source, under GGUF's keys without the architecture's name.
    pub sizes: Vec<(String, u64)>,
}

impl Unknown {
    /// Creates a value for a model without known facts.
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), architecture: String::new(), sizes: Vec::new() }
    }

    fn sized(reason: impl Into<String>, document: Document<'_>) -> Self {
        let Sizes { architecture, numbers } = Sizes::of(document);
        let sizes = numbers.into_iter().map(|(key, number)| (key.to_owned(), number)).collect();
        Self { reason: reason.into(), architecture, sizes }
    }
}

/// A model that can be run.
#[derive(Clone, Debug)]
pub struct Described {
    /// Family and blueprint.
    pub architecture: Architecture,
    /// Kind of tokenizer.
    pub tokenizer: Tokenizer,
}

impl Described {
    /// Returns the decoder in the form that estimates use.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder { blueprint: &self.architecture.blueprint, tokenizer: self.tokenizer }
    }

    /// The numbers of the architecture under GGUF's keys, without the architecture's prefix.
    pub fn gguf_facts(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.architecture.facts().into_iter().map(|(key, fact)| {
            let value = match fact {
                Fact::Unsigned(number) => number.into(),
                Fact::Float(number) => number.into(),
            };
            (key, value)
        })
    }
}

impl ParsedFacts {
    /// Returns the description, if the model can be run.
    pub fn known(&self) -> Option<&Described> {
        match self {
            Self::Known(described) => Some(described),
            Self::Unknown(_) => None,
        }
    }

    /// Returns the known facts, if the model cannot be run.
    pub fn unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(unknown) => Some(unknown),
        }
    }

    /// Returns the longest context that the model was made for, in tokens; 0 if unknown.
    pub fn context(&self) -> u64 {
        self.known().map_or(0, |described| described.architecture.blueprint.context)
    }

    /// Returns why the model sees no pictures; the reason is empty if it was made for text only.
    /// `None` if it sees them, or if its architecture is not known.
    pub fn no_pictures_reason(&self) -> Option<&str> {
        match &self.known()?.architecture.blueprint.pictures {
            Some(Pictures::Supported(_)) => None,
            Some(Pictures::Unsupported(reason)) => Some(reason),
            None => Some(""),
        }
    }

    /// Returns the numbers of the model's tower under GGUF's keys, if it sees pictures.
    pub fn tower_facts(&self) -> Vec<(&'static str, u64)> {
        let Some(tower) = self.known().and_then(|described| described.architecture.blueprint.tower()) else {
            return Vec::new();
        };
        let first = tower.layers.first();
        vec![
            ("clip.vision.block_count", tower.layers.len() as u64),
            ("clip.vision.embedding_length", tower.hidden),
            ("clip.vision.attention.head_count", first.map_or(0, |layer| layer.mixer.heads())),
            ("clip.vision.patch_size", tower.input.patch),
            ("clip.vision.projection_dim", tower.projector.layers.last().map_or(0, |layer| layer.width)),
        ]
    }

    /// Returns the architecture's name in GGUF.
    pub fn gguf_name(&self) -> Option<&'static str> {
        Some(self.known()?.architecture.family.gguf.architecture)
    }
}

/// Returns the `tokenizer.json` that came with the model, if any. It takes precedence over the
/// vocabulary of a GGUF file.
pub(crate) fn tokenizer_json(manifest: &Manifest) -> Option<&Layer> {
    manifest.layers().iter().find(|layer| layer.name() == Some("tokenizer.json"))
}

/// The document that describes a source's architecture.
#[derive(Clone, Debug)]
pub(crate) enum SourceDocument {
    /// Headers of GGUF files.
    Gguf {
        /// Header of the model; for a split model, of the first file.
        model: Vec<u8>,
        /// Header of the projector, if the model has one.
        projector: Option<Vec<u8>>,
    },
    /// A `config.json`, with the linear layers behind pooling that `modules.json` lists.
    Config(ConfigDocuments),
    /// The source has neither.
    Missing,
}

impl SourceDocument {
    /// Reads the document of a model with one blob per tensor. A GGUF header takes precedence over
    /// a `config.json` beside it, because the tensors are those of the GGUF file.
    pub(crate) fn of_layers(manifest: &Manifest, open: &Open<'_>) -> Result<Self> {
        let headers: Vec<&Layer> = manifest.layers_of(media_types::HEADER).filter(|layer| layer.size() >= 4).collect();
        if let Some(first) = first_gguf(headers.iter().copied(), open)? {
            let read = |layer: &Layer| {
                let name = layer.name().unwrap_or("header");
                read_document(name, &layer.descriptor, MAX_GGUF_HEADER, open)
            };
            // The header of a projector is the last one. Bytes between tensors are such layers,
            // too.
            let others = headers.iter().rev().copied().filter(|layer| layer.digest() != first.digest());
            let last = first_gguf(others, open)?.map(read).transpose()?;
            return Ok(Self::Gguf { model: read(first)?, projector: last.filter(|raw| is_projector_header(raw)) });
        }
        let read = |name: &str| {
            let layer = manifest.json(name);
            layer.map(|layer| read_document(name, &layer.descriptor, MAX_DOCUMENT, open)).transpose()
        };
        Ok(ConfigDocuments::read(read)?.map_or(Self::Missing, Self::Config))
    }

    /// Reads the document of a model of whole files.
    pub(crate) fn of_files(inventory: &Inventory) -> Result<Self> {
        let read = |source: &dyn ReadAt, size: u64, most: u64| -> Result<Vec<u8>> {
            let mut bytes = vec![0; size.min(most) as usize];
            source.read_exact_at(&mut bytes, 0).with_context(|| format!("cannot read `{}`", source.name()))?;
            Ok(bytes)
        };
        let document = |name: &str| {
            let file = inventory.side_files.iter().find(|file| file.name == name);
            file.map(|file| read(&*file.source, file.size, MAX_DOCUMENT)).transpose()
        };
        let Some((first, others)) = inventory.files.split_first() else { return Ok(Self::Missing) };
        if inventory.format != import::SourceFormat::Gguf {
            return Ok(ConfigDocuments::read(document)?.map_or(Self::Missing, Self::Config));
        }
        let header = |file: &import::SourceFile| read(&*file.source, file.header, MAX_GGUF_HEADER);
        let last = others.last().map(header).transpose()?;
        Ok(Self::Gguf { model: header(first)?, projector: last.filter(|raw| is_projector_header(raw)) })
    }

    /// Derives the architecture from the document. `names` are the names of the model's tensors;
    /// `given` is the kind of the model's `tokenizer.json`, if it has one.
    pub(crate) fn parsed_facts(&self, names: &TensorNames, given: Option<Tokenizer>) -> ParsedFacts {
        match self {
            Self::Config(folder) => {
                let described = folder.describe(names);
                facts(described, Document::Config(&folder.config), given.unwrap_or(Tokenizer::Json))
            }
            Self::Missing => ParsedFacts::Unknown(Unknown::because("it has neither a `config.json` nor a GGUF header")),
            Self::Gguf { model, projector } => of_gguf(model, projector.as_deref(), names, given)
                .unwrap_or_else(|error| ParsedFacts::Unknown(Unknown::because(error.to_string()))),
        }
    }
}

/// Derives the architecture from the headers of a model and of its projector.
fn of_gguf(
    model: &[u8],
    projector: Option<&[u8]>,
    names: &TensorNames,
    given: Option<Tokenizer>,
) -> Result<ParsedFacts, formats::Error> {
    let model = Gguf::parse_header(model)?;
    let projector = projector.map(Gguf::parse_header).transpose()?;
    let tokenizer = given.unwrap_or_else(|| tokenizer(&model));
    let document = Document::Gguf(&model);
    let described = describe(document, names).map_err(|error| error.to_string());
    let described = described.map(|architecture| architecture.with_projector(&model, projector.as_ref(), names));
    Ok(facts(described, document, tokenizer))
}

/// Returns the first layer that begins as a GGUF file.
fn first_gguf<'a>(layers: impl Iterator<Item = &'a Layer>, open: &Open<'_>) -> Result<Option<&'a Layer>> {
    for layer in layers {
        let (name, mut magic) = (layer.name().unwrap_or("header"), [0; 4]);
        let blob = open(name, &layer.descriptor);
        blob.read_exact_at(&mut magic, 0).with_context(|| format!("cannot read `{name}`"))?;
        if magic == *b"GGUF" {
            return Ok(Some(layer));
        }
    }
    Ok(None)
}

/// True if this is the header of a projector.
fn is_projector_header(raw: &[u8]) -> bool {
    Gguf::parse_header(raw).is_ok_and(|gguf| import::is_projector_header(&gguf))
}

fn facts(described: Result<Architecture, String>, document: Document<'_>, tokenizer: Tokenizer) -> ParsedFacts {
    match described {
        Ok(architecture) => ParsedFacts::Known(Box::new(Described { architecture, tokenizer })),
        Err(reason) => ParsedFacts::Unknown(Unknown::sized(reason, document)),
    }
}

fn tokenizer(gguf: &Gguf<'_>) -> Tokenizer {
    match gguf.text("tokenizer.ggml.model") {
        Some("llama") => Tokenizer::SentencePiece,
        _ => Tokenizer::BytePair,
    }
}

/// Reads a document of at most `most` bytes and verifies its digest.
pub(crate) fn read_document(name: &str, blob: &Descriptor, most: u64, open: &Open<'_>) -> Result<Vec<u8>> {
    let size = blob.size;
    if size > most {
        bail!("`{name}` has {size} bytes, the limit for such documents is {most}");
    }
    let mut bytes = vec![0; size as usize];
    open(name, blob).read_exact_at(&mut bytes, 0).with_context(|| format!("cannot read `{name}`"))?;
    let mut hasher = Hasher::new(blob.digest.algorithm());
    hasher.update(&bytes);
    let (found, expected) = (hasher.finish(), blob.digest);
    ensure!(found == expected, "the bytes of `{name}` have the digest `{found}`, expected `{expected}`");
    Ok(bytes)
}

/// Returns the names of a manifest's tensor layers. All experts of a group share one name; a
/// blueprint does not depend on the individual names.
pub(crate) fn layer_names(manifest: &Manifest) -> TensorNames {
    manifest.layers_of(media_types::TENSOR).filter_map(Layer::name).map(str::to_owned).collect()
}
