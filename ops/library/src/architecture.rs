//! The architecture of a stored model, cached so that its documents are read once.

use architectures::{Architecture, Blueprint, Family};
use content::Descriptor;
use content::operation::Result;
use estimate::exact::Tokenizer;
use manifests::{Layer, Manifest};
use serde::{Deserialize, Serialize};
use vocabulary::token_table::is_plain_bpe;

use crate::blobs::beginning;
use crate::derived::Derivation;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;
use crate::parsed_facts::{Described, ParsedFacts, SourceDocument, Unknown, layer_names, tokenizer_json};

const DERIVATION: Derivation = Derivation { kind: "architecture", version: 6 };

impl Library {
    /// Returns what this build knows of a model's architecture.
    ///
    /// # Errors
    /// The model's documents cannot be read. Invalid contents are not an error; the architecture is
    /// then unknown.
    pub fn parsed_facts(&self, manifest: &Manifest) -> Result<ParsedFacts> {
        let note = self.derived(DERIVATION, manifest.digest(), || {
            let (document, names) = if let Some(inventory) = self.whole_inventory(manifest)? {
                let names = inventory.tensors.iter().map(|tensor| tensor.name.clone()).collect();
                (SourceDocument::of_files(&inventory)?, names)
            } else {
                let open = |_: &str, descriptor: &Descriptor| self.open(&descriptor.digest);
                // A blob of several tensors has one layer name; its header lists all of them. The
                // headers are missing only for models of which just the manifest is known.
                let catalogued =
                    self.catalogue(manifest).map(|tensors| tensors.into_iter().map(|tensor| tensor.name).collect());
                (SourceDocument::of_layers(manifest, &open)?, catalogued.unwrap_or_else(|_| layer_names(manifest)))
            };
            let read = |layer: &Layer| beginning(&*self.open(layer.digest()), MAX_DOCUMENT);
            let is_plain = |layer| read(layer).is_ok_and(|raw| is_plain_bpe(&raw));
            let kind = |layer| if is_plain(layer) { Tokenizer::BytePair } else { Tokenizer::Json };
            Ok(Note::from(&document.parsed_facts(&names, tokenizer_json(manifest).map(kind))))
        })?;
        Ok(note.into())
    }
}

/// Serialized form of [`ParsedFacts`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Known { family: String, tokenizer: Tokenizer, blueprint: Box<Blueprint> },
    Unknown(Unknown),
}

impl From<&ParsedFacts> for Note {
    fn from(parsed_facts: &ParsedFacts) -> Self {
        match parsed_facts {
            ParsedFacts::Known(described) => Self::Known {
                family: described.architecture.family.name.to_owned(),
                tokenizer: described.tokenizer,
                blueprint: Box::new(described.architecture.blueprint.clone()),
            },
            ParsedFacts::Unknown(unknown) => Self::Unknown(unknown.clone()),
        }
    }
}

impl From<Note> for ParsedFacts {
    fn from(note: Note) -> Self {
        match note {
            Note::Known { family, tokenizer, blueprint } => match Family::named(&family) {
                Some(family) => {
                    let architecture = Architecture { family, blueprint: *blueprint };
                    Self::Known(Box::new(Described { architecture, tokenizer }))
                }
                // Only a manipulated note can name an unknown family, because notes of other builds
                // are ignored.
                None => Self::Unknown(Unknown::because(format!("the family `{family}` is not known"))),
            },
            Note::Unknown(unknown) => Self::Unknown(unknown),
        }
    }
}
