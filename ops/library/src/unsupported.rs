//! Detection of models that are stored without loss but cannot be run.

use architectures::{Document, TensorNames, unread_keys};
use content::operation::{Context, Result, Unclassified};
use formats::Gguf;
use import::StoredTensor;
use manifests::Manifest;

use crate::library::Library;
use crate::model::Contents;
use crate::parsed_facts::{Described, SourceDocument};

/// Name endings of tensors that do not affect the computation here: buffers that are recomputed or
/// have the same value in all models, a factor that the config switches off, and scales for low-bit
/// activations and caches, which are not used.
const HARMLESS: &[&str] = &[
    ".act_fn.beta",
    ".act_fn.eps",
    ".altup.correct_output_scale",
    ".activation_scale",
    ".attention.bias",
    ".attn.bias",
    ".input_activation_scale",
    ".input_global_scale",
    ".input_scale",
    ".inv_freq",
    ".k_scale",
    ".masked_bias",
    ".output_scale",
    ".ple_embedding.layer_multipliers",
    ".ple_embedding.ngram_heads_offsets",
    ".ple_embedding.ngram_heads_vocab_sizes",
    ".q_scale",
    ".self_attn.diagonal_decay",
    ".self_attn.key_decay",
    ".self_attn.query_decay",
    ".self_attn.slope_rate",
    ".v_scale",
    ".weight_shape",
];

impl Library {
    /// Returns why the model cannot be run, if it cannot: its architecture, or how its weights are
    /// quantized.
    ///
    /// # Errors
    /// A document or the header of a blob cannot be read.
    pub fn obstacle(&self, manifest: &Manifest) -> Result<UnsupportedReason> {
        let (Contents { parsed_facts, .. }, _) = self.contents(manifest.digest())?;
        match (parsed_facts.known(), parsed_facts.unknown()) {
            (Some(described), _) => {
                let tensors = self.catalogue(manifest)?;
                Ok(match self.unsupported_quantization(manifest, described, &tensors)? {
                    Some(reason) => UnsupportedReason::Quantization(reason),
                    None => self
                        .unread(manifest, described, &tensors)?
                        .map_or(UnsupportedReason::None, UnsupportedReason::Unread),
                })
            }
            (None, unknown) => {
                Ok(UnsupportedReason::Architecture(unknown.map(|own| own.reason.clone()).unwrap_or_default()))
            }
        }
    }

    /// Returns why the weights of a model with a known architecture cannot be computed with, if
    /// they cannot.
    pub(crate) fn unsupported_quantization(
        &self,
        manifest: &Manifest,
        described: &Described,
        tensors: &[StoredTensor],
    ) -> Result<Option<String>> {
        let reads = described.architecture.blueprint.reads();
        let quantization = import::quantization(manifest.layers(), &*self.opener())?;
        Ok(import::obstacle(tensors, &|name| reads.has_numbers(name), quantization.method()))
    }

    /// Returns the keys of a GGUF header that could change what the model computes and that its
    /// family does not read. They are not an obstacle, because other programs also write keys that
    /// do not concern a decoder.
    ///
    /// # Errors
    /// The header cannot be read.
    pub fn unread_gguf_keys(&self, manifest: &Manifest) -> Result<Vec<String>> {
        let SourceDocument::Gguf { model: raw, .. } = self.source_document(manifest)? else { return Ok(Vec::new()) };
        let gguf = Gguf::parse_header(&raw).internal().context("the header was read before")?;
        let names: TensorNames = self.catalogue(manifest)?.into_iter().map(|tensor| tensor.name).collect();
        Ok(unread_keys(Document::Gguf(&gguf), &names).unwrap_or_default())
    }

    /// Returns a key of the config, or a tensor in a layer, that the family does not read and that
    /// could change what the model computes.
    pub(crate) fn unread(
        &self,
        manifest: &Manifest,
        described: &Described,
        tensors: &[StoredTensor],
    ) -> Result<Option<String>> {
        let family = described.architecture.family.name;
        // The header of a GGUF file is long, and is not needed here.
        let may_have_config = manifest.json("config.json").is_some() || !self.whole_files(manifest).is_empty();
        if may_have_config && let SourceDocument::Config(folder) = self.source_document(manifest)? {
            let names: TensorNames = tensors.iter().map(|tensor| tensor.name.clone()).collect();
            let keys = unread_keys(Document::Config(&folder.config), &names)
                .internal()
                .context("the config was read before")?;
            if !keys.is_empty() {
                let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
                return Ok(Some(format!(
                    "its config.json has {}, which this version of Lode does not read for models of the family {family} and which \
                     may change what the model computes; if you know that it does not, remove it from config.json and create \
                     the model again",
                    keys.join(", ")
                )));
            }
        }
        let reads = described.architecture.blueprint.reads();
        let is_unread = |name: &str| reads.has_layer_of(name) && !reads.has(name);
        let unread = tensors.iter().map(|tensor| tensor.name.as_str());
        let unread =
            unread.filter(|name| !HARMLESS.iter().any(|ending| name.ends_with(ending))).find(|name| is_unread(name));
        Ok(unread.map(|name| {
            format!(
                "it has the tensor `{name}`, which layers of the family {family} do not have as this version of Lode knows them, so \
                 it would compute something else than the model's authors meant"
            )
        }))
    }
}

impl UnsupportedReason {
    /// Returns the reason, if the model cannot be run.
    pub fn text(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Architecture(reason) | Self::Quantization(reason) | Self::Unread(reason) => Some(reason),
        }
    }

    /// Returns a line that tells users of a stored model that it cannot be run.
    pub fn note(self) -> Option<String> {
        self.text().map(|reason| format!("note: the model is stored but cannot be run: {reason}"))
    }
}

/// Why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsupportedReason {
    /// The model can be run.
    None,
    /// No family reads the model, or its documents are inconsistent.
    Architecture(String),
    /// The quantization of its weights is not supported.
    Quantization(String),
    /// Its source contains a key or a tensor that no family reads.
    Unread(String),
}
