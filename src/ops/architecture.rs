//! What a model of a store, or of a registry, is: its architecture as this build understands it, from the documents of its
//! source. No config is asked: anybody may have written it, and older builds understood less.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use architectures::{Architecture, Blueprint, Document, Family, Sizes, TensorNames, describe};
use content::{Descriptor, Digest, Hasher};
use formats::Gguf;
use import::{Inventory, LocalFile, MAX_GGUF_HEADER, ReadAt};
use manifests::{Layer, Manifest, media_types};
use scheduler::estimate::exact::{Decoder, Tokenizer};
use serde::{Deserialize, Serialize};
use vocabulary::token_table::is_plain_bpe;

use super::Library;
use super::capabilities::beginning;
use super::derived::Derivation;
use super::library::MAX_DOCUMENT;

const DERIVATION: Derivation = Derivation { kind: "architecture", version: 3 };

/// Gives the bytes of a blob, here or at a registry; the text is what the manifest calls it.
pub(super) type Open<'a> = dyn Fn(&str, &Descriptor) -> Arc<dyn ReadAt> + 'a;

/// What this build makes of a model.
#[derive(Clone, Debug)]
pub(crate) enum Understood {
    /// It can be run.
    Known(Box<Described>),
    /// It can be stored and listed only.
    Unknown(Unknown),
}

/// A model that cannot be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unknown {
    /// Why.
    pub(crate) reason: String,
    /// What its source calls it; empty where it does not.
    pub(crate) architecture: String,
    /// The sizes that its source tells, under GGUF's keys without the architecture's name.
    pub(crate) sizes: Vec<(String, u64)>,
}

impl Unknown {
    /// One of which nothing is known.
    pub(crate) fn because(reason: impl Into<String>) -> Self {
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
pub(crate) struct Described {
    /// Its family and its blueprint.
    pub(crate) architecture: Architecture,
    /// How text becomes tokens.
    pub(crate) tokenizer: Tokenizer,
}

impl Described {
    /// The decoder as estimates see it.
    pub(crate) fn decoder(&self) -> Decoder<'_> {
        Decoder { blueprint: &self.architecture.blueprint, tokenizer: self.tokenizer }
    }
}

impl Understood {
    /// The description, where there is one.
    pub(crate) fn known(&self) -> Option<&Described> {
        match self {
            Self::Known(described) => Some(described),
            Self::Unknown(_) => None,
        }
    }

    /// What is known of it, where it cannot be run.
    pub(crate) fn unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(unknown) => Some(unknown),
        }
    }

    /// The longest context that the model was made for, in tokens; 0 where that is not known.
    pub(crate) fn context(&self) -> u64 {
        self.known().map_or(0, |described| described.architecture.blueprint.context)
    }

    /// The architecture as GGUF names it.
    pub(super) fn gguf_name(&self) -> Option<&'static str> {
        Some(self.known()?.architecture.family.gguf.architecture)
    }
}

impl Library {
    /// What a model is.
    ///
    /// # Errors
    /// Its documents cannot be read. That they say something strange is no error, but unknown.
    pub(super) fn understood(&self, manifest: &Manifest) -> Result<Understood> {
        let note = self.derived(DERIVATION, manifest.digest(), || {
            let (document, names) = if let Some(inventory) = self.whole_inventory(manifest)? {
                let names = inventory.tensors.iter().map(|tensor| tensor.name.clone()).collect();
                (SourceDocument::of_files(&inventory)?, names)
            } else {
                let blob = |digest: &Digest| LocalFile::new(self.store.path(digest)).with_digest(*digest);
                let open = |_: &str, descriptor: &Descriptor| Arc::new(blob(&descriptor.digest)) as Arc<dyn ReadAt>;
                (SourceDocument::of_layers(manifest, &open)?, layer_names(manifest))
            };
            let read = |layer: &Layer| beginning(&self.store.path(layer.digest()), MAX_DOCUMENT);
            let is_plain = |layer| read(layer).is_ok_and(|raw| is_plain_bpe(&raw));
            let kind = |layer| if is_plain(layer) { Tokenizer::BytePair } else { Tokenizer::Json };
            Ok(Note::from(&document.understood(&names, tokenizer_json(manifest).map(kind))))
        })?;
        Ok(note.into())
    }
}

/// The `tokenizer.json` that came with the model, if one did: it counts more than the vocabulary of a GGUF file.
pub(super) fn tokenizer_json(manifest: &Manifest) -> Option<&Layer> {
    manifest.layers().iter().find(|layer| layer.name() == Some("tokenizer.json"))
}

/// The document in which a source says what it is.
#[derive(Clone, Debug)]
pub(super) enum SourceDocument {
    /// The header of a GGUF file; of a split, the first.
    Gguf(Vec<u8>),
    /// `config.json`.
    Config(Vec<u8>),
    /// There is none.
    Missing,
}

impl SourceDocument {
    /// Of a model with a blob for each tensor. A GGUF header counts more than a `config.json` that came beside it: the
    /// tensors are those of the file.
    pub(super) fn of_layers(manifest: &Manifest, open: &Open<'_>) -> Result<Self> {
        for layer in manifest.layers_of(media_types::HEADER).filter(|layer| layer.size() >= 4) {
            let name = layer.name().unwrap_or("header");
            let mut magic = [0; 4];
            let blob = open(name, &layer.descriptor);
            blob.read_exact_at(&mut magic, 0).with_context(|| format!("cannot read `{name}`"))?;
            if magic == *b"GGUF" {
                return Ok(Self::Gguf(read_document(name, &layer.descriptor, MAX_GGUF_HEADER, open)?));
            }
        }
        match manifest.json("config.json") {
            Some(layer) => Ok(Self::Config(read_document("config.json", &layer.descriptor, MAX_DOCUMENT, open)?)),
            None => Ok(Self::Missing),
        }
    }

    /// Of files that are as they came.
    pub(super) fn of_files(inventory: &Inventory) -> Result<Self> {
        let read = |source: &dyn ReadAt, size: u64, most: u64| -> Result<Vec<u8>> {
            let mut bytes = vec![0; size.min(most) as usize];
            source.read_exact_at(&mut bytes, 0).with_context(|| format!("cannot read `{}`", source.name()))?;
            Ok(bytes)
        };
        let config = || inventory.side_files.iter().find(|file| file.name == "config.json");
        match inventory.files.first() {
            Some(file) if inventory.format == import::SourceFormat::Gguf => {
                Ok(Self::Gguf(read(&*file.source, file.header, MAX_GGUF_HEADER)?))
            }
            _ => match config() {
                Some(file) => Ok(Self::Config(read(&*file.source, file.size, MAX_DOCUMENT)?)),
                None => Ok(Self::Missing),
            },
        }
    }

    /// What it says. `names` are those of the model's tensors; `given` is what a `tokenizer.json` beside it is, where there is one.
    pub(super) fn understood(&self, names: &TensorNames, given: Option<Tokenizer>) -> Understood {
        let gguf = match self {
            Self::Config(raw) => return read(Document::Config(raw), names, given.unwrap_or(Tokenizer::Json)),
            Self::Missing => {
                return Understood::Unknown(Unknown::because("it has neither a `config.json` nor a GGUF header"));
            }
            Self::Gguf(raw) => Gguf::parse_header(raw),
        };
        match gguf {
            Ok(gguf) => {
                let tokenizer = given.unwrap_or_else(|| tokenizer(&gguf));
                read(Document::Gguf(&gguf), names, tokenizer)
            }
            Err(error) => Understood::Unknown(Unknown::because(error.to_string())),
        }
    }
}

fn read(document: Document<'_>, names: &TensorNames, tokenizer: Tokenizer) -> Understood {
    match describe(document, names) {
        Ok(architecture) => Understood::Known(Box::new(Described { architecture, tokenizer })),
        Err(error) => Understood::Unknown(Unknown::sized(error.to_string(), document)),
    }
}

fn tokenizer(gguf: &Gguf<'_>) -> Tokenizer {
    match gguf.text("tokenizer.ggml.model") {
        Some("llama") => Tokenizer::SentencePiece,
        _ => Tokenizer::BytePair,
    }
}

/// Reads a document of at most so many bytes and makes sure that it is the one that its descriptor means.
pub(super) fn read_document(name: &str, blob: &Descriptor, most: u64, open: &Open<'_>) -> Result<Vec<u8>> {
    let size = blob.size;
    if size > most {
        bail!("`{name}` has {size} bytes, at most {most} are read of such a document");
    }
    let mut bytes = vec![0; size as usize];
    open(name, blob).read_exact_at(&mut bytes, 0).with_context(|| format!("cannot read `{name}`"))?;
    let mut hasher = Hasher::new(blob.digest.algorithm());
    hasher.update(&bytes);
    let (found, expected) = (hasher.finish(), blob.digest);
    ensure!(found == expected, "the bytes of `{name}` have the digest `{found}`, expected `{expected}`");
    Ok(bytes)
}

/// The names of a manifest's tensor layers. Experts have one for all of them; nothing of a blueprint depends on which there
/// are.
pub(super) fn layer_names(manifest: &Manifest) -> TensorNames {
    manifest.layers_of(media_types::TENSOR).filter_map(Layer::name).map(str::to_owned).collect()
}

/// How it is written down.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Known { family: String, tokenizer: Tokenizer, blueprint: Box<Blueprint> },
    Unknown(Unknown),
}

impl From<&Understood> for Note {
    fn from(understood: &Understood) -> Self {
        match understood {
            Understood::Known(described) => Self::Known {
                family: described.architecture.family.name.to_owned(),
                tokenizer: described.tokenizer,
                blueprint: Box::new(described.architecture.blueprint.clone()),
            },
            Understood::Unknown(unknown) => Self::Unknown(unknown.clone()),
        }
    }
}

impl From<Note> for Understood {
    fn from(note: Note) -> Self {
        match note {
            Note::Known { family, tokenizer, blueprint } => match Family::named(&family) {
                Some(family) => {
                    let architecture = Architecture { family, blueprint: *blueprint };
                    Self::Known(Box::new(Described { architecture, tokenizer }))
                }
                // Only a note that somebody has written by hand says so: those of other builds are not read.
                None => Self::Unknown(Unknown::because(format!("the family `{family}` is not known"))),
            },
            Note::Unknown(unknown) => Self::Unknown(unknown),
        }
    }
}
