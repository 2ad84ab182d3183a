//! Models that are stored without loss and cannot be computed with.

use anyhow::{Context, Result};
use architectures::{Document, TensorNames, unread_keys};
use formats::Gguf;
use import::StoredTensor;
use manifests::Manifest;

use crate::library::Library;
use crate::model::Contents;
use crate::understood::{Described, SourceDocument};

/// What tensors in a layer end with that change nothing of what it computes here: buffers that are computed anew, and scales for
/// activations and caches in fewer bits, which are not used.
const HARMLESS: &[&str] = &[
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
    ".q_scale",
    ".v_scale",
    ".weight_shape",
];

impl Library {
    /// Why the model cannot be run, where that is so: its architecture, or how its weights are quantized.
    ///
    /// # Errors
    /// A document or the header of a blob cannot be read.
    pub fn obstacle(&self, manifest: &Manifest) -> Result<Obstacle> {
        let (Contents { understood, .. }, _) = self.contents(manifest.digest())?;
        match (understood.known(), understood.unknown()) {
            (Some(described), _) => {
                let tensors = self.catalogue(manifest)?;
                Ok(match self.quantization_obstacle(manifest, described, &tensors)? {
                    Some(reason) => Obstacle::Quantization(reason),
                    None => self.unread(manifest, described, &tensors)?.map_or(Obstacle::None, Obstacle::Unread),
                })
            }
            (None, unknown) => Ok(Obstacle::Architecture(unknown.map(|own| own.reason.clone()).unwrap_or_default())),
        }
    }

    /// Why the weights of a model of a known architecture cannot be computed with, where that is so.
    pub(crate) fn quantization_obstacle(
        &self,
        manifest: &Manifest,
        described: &Described,
        tensors: &[StoredTensor],
    ) -> Result<Option<String>> {
        let reads = described.architecture.blueprint.reads();
        let quantization = import::quantization(manifest.layers(), &*self.opener())?;
        Ok(import::obstacle(tensors, &|name| reads.has(name), quantization.method()))
    }

    /// The keys of a GGUF header that may change what the model computes and that its family does not read. Files of other programs
    /// have keys that mean nothing to a decoder, too, so none is an obstacle.
    ///
    /// # Errors
    /// The header cannot be read.
    pub fn unread_gguf_keys(&self, manifest: &Manifest) -> Result<Vec<String>> {
        let SourceDocument::Gguf(raw) = self.source_document(manifest)? else { return Ok(Vec::new()) };
        let gguf = Gguf::parse_header(&raw).context("the header was read before")?;
        let names: TensorNames = self.catalogue(manifest)?.into_iter().map(|tensor| tensor.name).collect();
        Ok(unread_keys(Document::Gguf(&gguf), &names).unwrap_or_default())
    }

    /// A key of the config, or a tensor in a layer, that the family does not read and that may change what the model computes.
    fn unread(&self, manifest: &Manifest, described: &Described, tensors: &[StoredTensor]) -> Result<Option<String>> {
        let family = described.architecture.family.name;
        if let SourceDocument::Config(raw) = self.source_document(manifest)? {
            let names: TensorNames = tensors.iter().map(|tensor| tensor.name.clone()).collect();
            let keys = unread_keys(Document::Config(&raw), &names).context("the config was read before")?;
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

/// Why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It can.
    None,
    /// No family reads it, or it says what cannot be.
    Architecture(String),
    /// What its weights are quantized by is not computed with.
    Quantization(String),
    /// Its source says something that no family reads.
    Unread(String),
}
