//! What a plan is made from: a manifest and its config, or the header of a GGUF file. Of tensors only names and sizes
//! are read.
//!
//! | layers | tensors | numbers |
//! |---|---|---|
//! | a blob for each tensor | the catalogue; of a model that is not here the manifest: blobs with their headers | the config, else `config.json`, else the header layer of a GGUF file |
//! | whole files | their headers | their headers, or `config.json` |

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use content::{Descriptor, Hasher};
use formats::gguf::{Value, ValueType, names};
use formats::hyper::Architecture;
use formats::{Gguf, HyperParameters};
use import::{NamedFile, ReadAt, SourceFormat, StoredTensor};
use manifests::{Layer, Manifest, ModelConfig, media_types};
use scheduler::estimate::exact::{Decoder, Tokenizer};
use scheduler::estimate::{MetadataValue, Model, Tensor, Weights};

use super::CannotPlan;
use crate::ops::foreign::{FileKind, ForeignFile, Layout, classify};
use crate::ops::library::MAX_DOCUMENT;

/// More blocks than any model has.
pub(super) const MAX_BLOCKS: usize = 1 << 16;

/// Gives the bytes of a blob, here or at a registry; the text is what the manifest calls it.
pub(super) type Open<'a> = dyn Fn(&str, &Descriptor) -> Arc<dyn ReadAt> + 'a;

/// The facts about a model.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// As GGUF describes the model.
    pub(super) model: Model,
    /// Its weights by layer.
    pub(super) weights: Weights,
    /// Bytes of its adapters. Ollama's estimate knows nothing of them.
    pub(super) adapters: u64,
    /// The sizes of its decoder, or why Lode cannot run it.
    pub(super) decoder: Result<Decoder, String>,
    /// The longest context that it was made for; 0 where nobody says.
    pub(super) context: u64,
}

impl Facts {
    /// The weights with the adapters. Which projections those change is not known without reading them, so all of them
    /// count as part of the first layer.
    pub(super) fn all_weights(&self) -> Weights {
        let mut weights = self.weights.clone();
        if let Some(first) = weights.blocks.first_mut() {
            *first = first.map(|bytes| bytes.saturating_add(self.adapters));
        }
        weights
    }
}

/// A tensor, wherever it was listed.
struct Listed {
    name: String,
    /// Outermost first; empty where nobody says.
    shape: Vec<u64>,
    bytes: u64,
}

/// Reads the facts of a model. `catalogue` has its tensors where it is in the store.
pub(super) fn facts(manifest: &Manifest, catalogue: Option<Vec<StoredTensor>>, open: &Open<'_>) -> Result<Facts> {
    let facts = match classify(manifest) {
        Layout::Lode | Layout::OllamaTensors => of_tensors(manifest, catalogue, open)?,
        Layout::Files(files) => of_files(files, open)?,
        Layout::Unknown(reason) => {
            return Err(CannotPlan(format!("it is not a model that can be run here: {reason}")).into());
        }
    };
    let adapters = manifest.layers_of(media_types::ADAPTER).map(Layer::size).fold(0, u64::saturating_add);
    Ok(Facts { adapters, ..facts })
}

/// Of a model with a blob for each tensor.
fn of_tensors(manifest: &Manifest, catalogue: Option<Vec<StoredTensor>>, open: &Open<'_>) -> Result<Facts> {
    let stored = |tensor: StoredTensor| Listed { bytes: tensor.size(), name: tensor.name, shape: tensor.shape };
    let layer = |layer: &Layer| Listed {
        name: layer.name().unwrap_or_default().to_owned(),
        shape: Vec::new(),
        bytes: layer.size(),
    };
    let tensors: Vec<Listed> = match catalogue {
        Some(tensors) => tensors.into_iter().map(stored).collect(),
        None => manifest.layers_of(media_types::TENSOR).map(layer).collect(),
    };
    let config = ModelConfig::parse(&read("config", manifest.config(), open)?)?;
    let lode = config.lode.unwrap_or_default();
    let known = match serde_json::from_value::<HyperParameters>(lode.hyper_parameters) {
        Ok(hyper) => Some(hyper.check("the model's config")?),
        Err(_) => match manifest.json("config.json") {
            Some(layer) => HyperParameters::from_config(&read("config.json", &layer.descriptor, open)?).ok(),
            None => None,
        },
    };
    if let Some(hyper) = known {
        return Ok(of_hyper_parameters(&hyper, lode.source_format == SourceFormat::Gguf.name(), &tensors));
    }
    for layer in manifest.layers_of(media_types::HEADER).filter(|layer| layer.size() <= MAX_DOCUMENT) {
        let header = read(layer.name().unwrap_or("header"), &layer.descriptor, open)?;
        if header.starts_with(b"GGUF") {
            return of_header(&header, &tensors);
        }
    }
    Err(CannotPlan(format!(
        "its architecture is `{}`, and neither its config nor a GGUF header says how large its layers are",
        config.model_family
    ))
    .into())
}

/// Of a model of whole files, by their headers.
fn of_files(files: Vec<ForeignFile>, open: &Open<'_>) -> Result<Facts> {
    let wanted = files.into_iter().filter_map(|file| match file.kind {
        FileKind::Gguf | FileKind::Safetensors | FileKind::Side => {
            let source = open(&file.name, &file.layer.descriptor);
            Some(Ok(NamedFile { name: file.name, source }))
        }
        FileKind::Tar => {
            Some(Err(CannotPlan(format!("its weights are in the archive `{}`; pull it first", file.name))))
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
    let is_gguf = inventory.format == SourceFormat::Gguf;
    match (inventory.hyper_parameters, inventory.files.first()) {
        (Ok(hyper), _) => Ok(of_hyper_parameters(&hyper, is_gguf, &tensors)),
        (Err(_), Some(file)) if is_gguf => {
            let mut header = vec![0; file.header.min(MAX_DOCUMENT) as usize];
            let read = file.source.read_exact_at(&mut header, 0);
            read.with_context(|| format!("cannot read the header of `{}`", file.source.name()))?;
            of_header(&header, &tensors)
        }
        (Err(error), _) => Err(CannotPlan(error.to_string()).into()),
    }
}

fn read(name: &str, blob: &Descriptor, open: &Open<'_>) -> Result<Vec<u8>> {
    let size = blob.size;
    if size > MAX_DOCUMENT {
        bail!("`{name}` has {size} bytes, at most {MAX_DOCUMENT} are read for a plan");
    }
    let mut bytes = vec![0; size as usize];
    open(name, blob).read_exact_at(&mut bytes, 0).with_context(|| format!("cannot read `{name}`"))?;
    let mut hasher = Hasher::new(blob.digest.algorithm());
    hasher.update(&bytes);
    let (found, expected) = (hasher.finish(), blob.digest);
    ensure!(found == expected, "the bytes of `{name}` have the digest `{found}`, expected `{expected}`");
    Ok(bytes)
}

/// Of an architecture that Lode knows: the keys that a GGUF file of it has.
fn of_hyper_parameters(hyper: &HyperParameters, is_gguf: bool, tensors: &[Listed]) -> Facts {
    let architecture = hyper.architecture.name();
    let keys = [
        ("block_count", Some(hyper.layers)),
        ("embedding_length", Some(hyper.hidden)),
        ("feed_forward_length", Some(hyper.intermediate)),
        ("attention.head_count", Some(hyper.heads)),
        ("attention.head_count_kv", Some(hyper.kv_heads)),
        ("attention.key_length", Some(hyper.head_dim)),
        ("attention.value_length", Some(hyper.head_dim)),
        ("attention.sliding_window", hyper.sliding_window),
    ];
    // What does not fit into the 32 bits that the format has for these numbers counts as absent.
    let keys = keys.into_iter().filter_map(|(key, number)| {
        Some((format!("{architecture}.{key}"), MetadataValue::U32(u32::try_from(number?).ok()?)))
    });
    let (tensors, weights) = by_gguf_name(architecture, tensors, hyper.layers);
    Facts {
        model: Model {
            architecture: architecture.to_owned(),
            metadata: keys.collect(),
            vocabulary: hyper.vocabulary,
            tensors,
        },
        weights,
        adapters: 0,
        decoder: Ok(decoder(hyper, is_gguf)),
        context: hyper.context,
    }
}

/// The sizes of a decoder; `is_gguf` where its weights came as a GGUF file.
pub(crate) fn decoder(hyper: &HyperParameters, is_gguf: bool) -> Decoder {
    // Gemma's GGUF files have its vocabulary as it was made; a `tokenizer.json` has it as byte pairs.
    let tokenizer = match hyper.architecture {
        _ if !is_gguf => Tokenizer::Json,
        Architecture::Gemma3 => Tokenizer::SentencePiece,
        Architecture::Llama => Tokenizer::BytePair,
    };
    Decoder {
        vocabulary: hyper.vocabulary,
        hidden: hyper.hidden,
        intermediate: hyper.intermediate,
        heads: hyper.heads,
        kv_heads: hyper.kv_heads,
        head_dim: hyper.head_dim,
        tokenizer,
    }
}

/// Of an architecture that Lode does not run: the header's own keys.
fn of_header(header: &[u8], tensors: &[Listed]) -> Result<Facts> {
    let gguf = Gguf::parse_header(header).map_err(|error| CannotPlan(format!("its GGUF header: {error}")))?;
    let architecture = gguf.text("general.architecture").unwrap_or("unknown");
    let number = |key: &str| gguf.unsigned(&format!("{architecture}.{key}")).unwrap_or(0);
    let metadata: BTreeMap<String, MetadataValue> =
        gguf.metadata.iter().filter_map(|(key, value)| Some(((*key).to_owned(), metadata_value(value)?))).collect();
    let (tensors, weights) = by_gguf_name(architecture, tensors, number("block_count"));
    Ok(Facts {
        weights,
        adapters: 0,
        decoder: Err(format!("Lode cannot run the architecture `{architecture}` yet")),
        context: number("context_length"),
        model: Model {
            architecture: architecture.to_owned(),
            metadata,
            vocabulary: gguf.array("tokenizer.ggml.tokens").map_or(0, |tokens| tokens.len()),
            tensors,
        },
    })
}

/// The values that an estimate looks at.
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

/// Tensors under the names that GGUF has for them, and their bytes by layer.
fn by_gguf_name(architecture: &str, tensors: &[Listed], blocks: u64) -> (Vec<Tensor>, Weights) {
    let named = tensors.iter().map(|tensor| Tensor {
        name: gguf_name(architecture, &tensor.name),
        shape: tensor.shape.iter().rev().copied().collect(),
        bytes: tensor.bytes,
    });
    let named: Vec<Tensor> = named.collect();
    // The estimate refuses more blocks than any model has; nothing is allocated for them before.
    let blocks = blocks.min(MAX_BLOCKS as u64) as usize;
    let weights = Weights::of(named.iter().map(|tensor| (tensor.name.as_str(), tensor.bytes)), blocks);
    (named, weights)
}

/// A tensor's name in GGUF. One that the format has no name for is told by its layer, e.g. a group of experts.
fn gguf_name(architecture: &str, name: &str) -> String {
    let in_layer = || {
        let (_, rest) = name.split_once("layers.")?;
        let (layer, rest) = rest.split_once('.')?;
        layer.parse::<u32>().ok().map(|layer| format!("blk.{layer}.{rest}"))
    };
    names::from_canonical(architecture, name).or_else(in_layer).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_names_of_gguf() {
        for (name, expect) in [
            ("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight"),
            ("model.layers.12.mlp.experts", "blk.12.mlp.experts"),
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("blk.0.ffn_gate.0.weight", "blk.0.ffn_gate.0.weight"),
            ("layers.x.y", "layers.x.y"),
        ] {
            assert_eq!(gguf_name("llama", name), expect);
        }
    }
}
