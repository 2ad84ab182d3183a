//! Models that are stored without loss and cannot be computed with.

use anyhow::Result;
use manifests::Manifest;

use crate::library::Library;
use crate::model::Contents;
use crate::understood::Described;

impl Library {
    /// Why the model cannot be run, where that is so: its architecture, or how its weights are quantized.
    ///
    /// # Errors
    /// A document or the header of a blob cannot be read.
    pub fn obstacle(&self, manifest: &Manifest) -> Result<Obstacle> {
        let (Contents { understood, .. }, _) = self.contents(manifest.digest())?;
        match (understood.known(), understood.unknown()) {
            (Some(described), _) => {
                Ok(self.quantization_obstacle(manifest, described)?.map_or(Obstacle::None, Obstacle::Quantization))
            }
            (None, unknown) => Ok(Obstacle::Architecture(unknown.map(|own| own.reason.clone()).unwrap_or_default())),
        }
    }

    /// Why the weights of a model of a known architecture cannot be computed with, where that is so.
    pub(crate) fn quantization_obstacle(&self, manifest: &Manifest, described: &Described) -> Result<Option<String>> {
        let reads = described.architecture.blueprint.reads();
        let quantization = import::quantization(manifest.layers(), &*self.opener())?;
        Ok(import::obstacle(&self.catalogue(manifest)?, &|name| reads.has(name), quantization.method()))
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
}
