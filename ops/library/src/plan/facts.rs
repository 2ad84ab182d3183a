//! The facts that a plan is based on: a manifest, the documents of the source, or the header of a
//! GGUF file. Of tensors, only names and sizes are read.
//!
//! | layers | tensors from | numbers from |
//! |---|---|---|
//! | a blob per tensor | the catalogue, or the manifest | the GGUF header, or `config.json` |
//! | whole files | their headers | their headers, or `config.json` |
//!
//! For a model that is not in the store, the tensors come from the manifest: blobs with their
//! headers. A GGUF header that was kept takes precedence over a `config.json`.

use std::collections::{BTreeMap, HashSet};

use architectures::{Fact, TensorNames, names};
use content::operation::Result;
use estimate::exact::Tokenizer;
use estimate::{MetadataValue, Model, Tensor, Weights};
use formats::Gguf;
use formats::gguf::{Value, ValueType};
use import::{NamedFile, StoredTensor};
use manifests::{Layer, Manifest, media_types};

use crate::error::Error;
use crate::layout::{ExternalFile, FileKind, Layout, classify};
use crate::parsed_facts::{Described, Open, ParsedFacts, SourceDocument, Unknown, layer_names, tokenizer_json};

/// Upper limit of blocks; no real model has as many.
const MAX_BLOCKS: usize = 1 << 16;

/// The facts about a model.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The model as GGUF describes it.
    pub(crate) model: Model,
    /// Weights by layer.
    pub(crate) weights: Weights,
    /// Bytes of its adapters, which Ollama's estimate ignores.
    pub(crate) adapters: u64,
    /// Bytes of its tower for pictures.
    tower: u64,
    /// The architecture, or why Lode cannot run the model.
    pub(crate) described: Result<Box<Described>, String>,
    /// Longest context that the model was made for; 0 if unknown.
    pub(crate) context: u64,
}

impl Facts {
    /// Returns the weights including adapters and the tower. The projections that adapters change
    /// are unknown without reading them, so all adapters count as part of the first layer. The
    /// tower is on the device of the output.
    pub(crate) fn all_weights(&self) -> Weights {
        let mut weights = self.weights.clone();
        if let Some(first) = weights.blocks.first_mut() {
            *first = first.map(|bytes| bytes.saturating_add(self.adapters));
        }
        weights.output_norm = weights.output_norm.map(|bytes| bytes.saturating_add(self.tower));
        weights
    }
}

/// A tensor, from any source.
struct Listed {
    name: String,
    /// Dimensions, outermost first; empty if unknown.
    shape: Vec<u64>,
    bytes: u64,
}

/// Known facts of a stored model.
pub(crate) struct Stored {
    pub(crate) tensors: Vec<StoredTensor>,
    pub(crate) parsed_facts: ParsedFacts,
}

/// Reads the facts of a model. `stored` contains the known facts of a stored model.
pub(crate) fn facts(manifest: &Manifest, stored: Option<Stored>, open: &Open<'_>) -> Result<Facts> {
    let facts = match classify(manifest) {
        Layout::Lode | Layout::OllamaTensors => of_tensors(manifest, stored, open)?,
        Layout::Files(files) => of_files(manifest, files, stored, open)?,
        Layout::Unknown(reason) => {
            return Err(Error::CannotPlan(format!("it is not a model that can be run here: {reason}")).into());
        }
    };
    let adapters = manifest.layers_of(media_types::ADAPTER).map(Layer::size).fold(0, u64::saturating_add);
    Ok(Facts { adapters, ..facts })
}

/// Reads the facts of a model with one blob per tensor.
fn of_tensors(manifest: &Manifest, stored: Option<Stored>, open: &Open<'_>) -> Result<Facts> {
    let layer = |layer: &Layer| Listed {
        name: layer.name().unwrap_or_default().to_owned(),
        shape: Vec::new(),
        bytes: layer.size(),
    };
    let listed = |tensor: StoredTensor| Listed { bytes: tensor.size(), name: tensor.name, shape: tensor.shape };
    let document = || SourceDocument::of_layers(manifest, open);
    let (tensors, parsed_facts): (Vec<Listed>, Option<ParsedFacts>) = match stored {
        Some(Stored { tensors, parsed_facts }) => (tensors.into_iter().map(listed).collect(), Some(parsed_facts)),
        None => (manifest.layers_of(media_types::TENSOR).map(layer).collect(), None),
    };
    of_document(document, &layer_names(manifest), parsed_facts, manifest, &tensors)
}

/// Reads the facts of a model of whole files, from their headers.
fn of_files(manifest: &Manifest, files: Vec<ExternalFile>, stored: Option<Stored>, open: &Open<'_>) -> Result<Facts> {
    let wanted = files.into_iter().filter_map(|file| match file.kind {
        FileKind::Gguf | FileKind::Projector | FileKind::Safetensors | FileKind::Side => {
            let source = open(&file.name, &file.layer.descriptor);
            Some(Ok(NamedFile { name: file.name, source }))
        }
        FileKind::Tar => {
            Some(Err(Error::CannotPlan(format!("its weights are in the archive `{}`; pull it first", file.name))))
        }
        _ => None,
    });
    let inventory = import::inventory(&wanted.collect::<Result<Vec<_>, _>>()?)?;
    let listed = inventory.tensors.iter().map(|tensor| Listed {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        bytes: tensor.size,
    });
    let tensors: Vec<Listed> = listed.collect();
    let document = || SourceDocument::of_files(&inventory);
    let names = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    of_document(document, &names, stored.map(|stored| stored.parsed_facts), manifest, &tensors)
}

/// Combines the facts. The document is read only if its contents are not known yet.
fn of_document(
    document: impl FnOnce() -> Result<SourceDocument>,
    names: &TensorNames,
    parsed_facts: Option<ParsedFacts>,
    manifest: &Manifest,
    tensors: &[Listed],
) -> Result<Facts> {
    if let Some(ParsedFacts::Known(described)) = parsed_facts {
        return Ok(of_known(described, tensors));
    }
    let document = document()?;
    // The tokenizer of a remote model is not read; nearly all are BPE.
    let given = tokenizer_json(manifest).map(|_| Tokenizer::BytePair);
    match parsed_facts.unwrap_or_else(|| document.parsed_facts(names, given)) {
        ParsedFacts::Known(described) => Ok(of_known(described, tensors)),
        ParsedFacts::Unknown(unknown) => of_unknown(&document, tensors, unknown),
    }
}

/// Returns the facts of an architecture that Lode knows, as the keys of its GGUF file.
fn of_known(described: Box<Described>, tensors: &[Listed]) -> Facts {
    let (architecture, blueprint) = (&described.architecture, &described.architecture.blueprint);
    let name = architecture.family.gguf.architecture;
    // Numbers that do not fit into the format's 32 bits are omitted.
    let keys = architecture.facts().into_iter().filter_map(|(key, fact)| match fact {
        Fact::Unsigned(number) => Some((format!("{name}.{key}"), MetadataValue::U32(u32::try_from(number).ok()?))),
        Fact::Float(_) => None,
    });
    // These tables are in layers, but no device holds them.
    let tables: HashSet<&str> = blueprint.layer_tables().map(|tensor| tensor.name.as_str()).collect();
    let placed = tensors.iter().filter(|tensor| !tables.contains(&*names::of_folder(&tensor.name)));
    let of_tower: HashSet<&str> = blueprint.read_by_tower().collect();
    let tower = tensors.iter().filter(|tensor| of_tower.contains(tensor.name.as_str()));
    let tower = tower.map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
    let (tensors, weights) = by_gguf_name(name, placed, blueprint.layers.len() as u64);
    Facts {
        tower,
        model: Model {
            architecture: name.to_owned(),
            metadata: keys.collect(),
            vocabulary: blueprint.vocabulary,
            tensors,
        },
        weights,
        adapters: 0,
        context: blueprint.context,
        described: Ok(described),
    }
}

/// Returns the facts of an architecture that Lode does not run, from the keys of its GGUF header or
/// the sizes in its config.
fn of_unknown(document: &SourceDocument, tensors: &[Listed], unknown: Unknown) -> Result<Facts> {
    let SourceDocument::Gguf { model: header, .. } = document else { return of_sizes(tensors, unknown) };
    let reason = unknown.reason;
    let gguf = Gguf::parse_header(header).map_err(|error| Error::CannotPlan(format!("its GGUF header: {error}")))?;
    let architecture = gguf.text("general.architecture").unwrap_or("unknown");
    let number = |key: &str| gguf.unsigned(&format!("{architecture}.{key}")).unwrap_or(0);
    let metadata: BTreeMap<String, MetadataValue> =
        gguf.metadata.iter().filter_map(|(key, value)| Some(((*key).to_owned(), metadata_value(value)?))).collect();
    let vocabulary = gguf.array("tokenizer.ggml.tokens").map_or(0, |tokens| tokens.len());
    let model = Model { architecture: architecture.to_owned(), metadata, vocabulary, tensors: Vec::new() };
    Ok(undescribed(reason, model, number, tensors))
}

/// Returns the facts of a folder, from the sizes in its config.
fn of_sizes(tensors: &[Listed], unknown: Unknown) -> Result<Facts> {
    let Unknown { reason, architecture, sizes } = unknown;
    let number = |name: &str| sizes.iter().find(|(key, _)| key == name).map_or(0, |(_, number)| *number);
    if number("block_count") == 0 {
        return Err(Error::CannotPlan(reason).into());
    }
    let value = |(key, number): &(String, u64)| {
        Some((format!("{architecture}.{key}"), MetadataValue::U32(u32::try_from(*number).ok()?)))
    };
    let metadata = sizes.iter().filter_map(value).collect();
    let model = Model { architecture, metadata, vocabulary: number("vocab_size"), tensors: Vec::new() };
    Ok(undescribed(reason, model, number, tensors))
}

/// Returns the facts of a model without a description, from its tensors. `number` returns the value
/// of a GGUF key.
fn undescribed(reason: String, model: Model, number: impl Fn(&str) -> u64, tensors: &[Listed]) -> Facts {
    let (tensors, weights) = by_gguf_name(&model.architecture, tensors, number("block_count"));
    let context = number("context_length");
    Facts { weights, adapters: 0, tower: 0, described: Err(reason), context, model: Model { tensors, ..model } }
}

/// Converts the metadata values that an estimate uses.
fn metadata_value(value: &Value<'_>) -> Option<MetadataValue> {
    Some(match value {
        Value::U32(number) => MetadataValue::U32(*number),
        Value::I32(number) => MetadataValue::I32(*number),
        Value::U64(number) => MetadataValue::U64(*number),
        // Longer lists are vocabularies.
        Value::Array(array) if array.len() <= 1 << 16 => match array.kind() {
            ValueType::U32 => MetadataValue::U32s(
                array.iter().filter_map(|item| if let Value::U32(n) = item { Some(n) } else { None }).collect(),
            ),
            ValueType::I32 => MetadataValue::I32s(
                array.iter().filter_map(|item| if let Value::I32(n) = item { Some(n) } else { None }).collect(),
            ),
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the tensors with their GGUF names, and their bytes by layer.
fn by_gguf_name<'a>(
    architecture: &str,
    tensors: impl IntoIterator<Item = &'a Listed>,
    blocks: u64,
) -> (Vec<Tensor>, Weights) {
    let named = tensors.into_iter().map(|tensor| Tensor {
        name: gguf_name(architecture, &tensor.name),
        shape: tensor.shape.iter().rev().copied().collect(),
        bytes: tensor.bytes,
    });
    let named: Vec<Tensor> = named.collect();
    // The estimate refuses models with more blocks, and no memory is allocated for them before.
    let blocks = blocks.min(MAX_BLOCKS as u64) as usize;
    let weights = Weights::of(named.iter().map(|tensor| (tensor.name.as_str(), tensor.bytes)), blocks);
    (named, weights)
}

/// Returns a tensor's name in GGUF. A tensor without a GGUF name, e.g. a group of experts, gets a
/// name that contains its layer.
fn gguf_name(architecture: &str, name: &str) -> String {
    let name = &names::of_folder(name);
    let in_layer = || {
        let (before, rest) = name.split_once("layers.")?;
        // The layers of image and audio encoders are not part of the decoder.
        if ["vision", "visual", "image", "audio"].iter().any(|part| before.contains(part)) {
            return None;
        }
        let (layer, rest) = rest.split_once('.')?;
        layer.parse::<u32>().ok().map(|layer| format!("blk.{layer}.{rest}"))
    };
    names::gguf(architecture, name).or_else(in_layer).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_names_of_gguf() {
        for (name, expect) in [
            ("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight"),
            ("model.layers.12.mlp.experts", "blk.12.ffn_exps"),
            ("model.layers.12.mlp.mixers", "blk.12.mlp.mixers"),
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("blk.0.ffn_gate.0.weight", "blk.0.ffn_gate.0.weight"),
            ("layers.x.y", "layers.x.y"),
            ("language_model.model.embed_tokens.weight", "token_embd.weight"),
            ("model.language_model.layers.3.mlp.up_proj.weight", "blk.3.ffn_up.weight"),
            (
                "vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight",
                "vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight",
            ),
        ] {
            assert_eq!(gguf_name("llama", name), expect);
        }
    }
}
