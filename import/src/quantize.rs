//! Quantization: plans a model that is derived from another by encoding some of its tensors again.
//!
//! ```text
//! tensors of a model ──▶ Survey ──▶ Policy::decide for each
//!                    ──▶ Quantization: blobs kept, derived and dropped
//! ```
//!
//! Pure. A blob is kept if none of its tensors changes. Otherwise a new blob is derived, with the
//! same name and the same tensors in their new encodings. Tensor names and the order of rows do not
//! change.

mod derivation;
mod table;

use std::collections::HashSet;

use content::Digest;
use formats::dtype::element_count;
use formats::{Dtype, Encoding};
use manifests::{Layer, LodeConfig, ModelConfig, media_types};

pub use derivation::{Derivation, DerivedTensor};
pub use table::{TensorRow, Totals};

use crate::facts::human_count;
use crate::{Decision, Error, Policy, Scheme, StoredTensor, Survey};

/// Tensors that may be encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// Only floats of 16 or 32 bits. A tensor that is already quantized is refused.
    #[default]
    Floats,
    /// Quantized tensors too. They are decoded first, so they lose more precision than their float
    /// originals would.
    Any,
}

/// Plan for a model's tensor blobs.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// Blobs in the order of the source's layers, without the dropped ones.
    pub blobs: Vec<BlobPlan>,
    /// All tensors of the source, in order.
    pub tensors: Vec<TensorRow>,
    /// User's rules that match no tensor, as messages name them.
    pub unused_rules: Vec<String>,
}

/// Plan for one blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobPlan {
    /// The layer is reused in the new model.
    Keep(Layer),
    /// A derived blob replaces the layer.
    Derive(Derivation),
}

impl Quantization {
    /// Plans the quantization.
    ///
    /// # Errors
    /// A tensor is quantized already and `sources` does not allow it; a user's rule requires an
    /// impossible encoding; or all tensors would be dropped.
    pub fn plan(
        architecture: &str,
        layers: &[Layer],
        tensors: &[StoredTensor],
        policy: &Policy,
        sources: Sources,
    ) -> Result<Self, Error> {
        let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
        let survey = Survey::new(architecture, named);
        let mut used = HashSet::new();
        let mut rows = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let (decision, rule) = policy.decide(&survey, &tensor.name, tensor.encoding, &tensor.shape)?;
            if let Decision::Encode(to) = decision {
                check_source(tensor, to, sources)?;
            }
            used.extend(rule);
            rows.push(TensorRow::new(tensor, decision)?);
        }
        let unused = policy.user_rules().iter().enumerate().filter(|(position, _)| !used.contains(position));
        let unused_rules = unused.map(|(_, rule)| rule.describe()).collect();
        let blobs = blobs(layers, tensors, &rows)?;
        if blobs.is_empty() {
            return Err(Error::Source("the policy drops every tensor of the model".to_owned()));
        }
        Ok(Self { blobs, tensors: rows, unused_rules })
    }

    /// Returns summary numbers for users.
    pub fn totals(&self) -> Totals {
        Totals::of(&self.tensors)
    }

    /// Returns the total size of derived blobs in bytes. Some of them may already exist.
    pub fn derived_bytes(&self) -> u64 {
        let sizes = self.blobs.iter().map(|blob| match blob {
            BlobPlan::Keep(_) => 0,
            BlobPlan::Derive(derivation) => derivation.size(),
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Returns the config of the new model, from the config of the source.
    pub fn describe(&self, source: ModelConfig, scheme: &Scheme) -> ModelConfig {
        let (tensor_count, parameter_count) = self.counts();
        let lode = LodeConfig { tensor_count, parameter_count, ..source.lode.unwrap_or_default() };
        ModelConfig {
            model_type: human_count(parameter_count),
            file_type: scheme.file_type(),
            lode: Some(lode),
            ..source
        }
    }

    /// Returns the numbers of tensors and parameters of the new model.
    pub fn counts(&self) -> (u64, u64) {
        let kept = self.tensors.iter().filter(|row| row.decision != Decision::Drop);
        kept.fold((0, 0), |(tensors, parameters), row| {
            (tensors + 1, element_count(&row.shape).unwrap_or(0).saturating_add(parameters))
        })
    }
}

fn check_source(tensor: &StoredTensor, to: Encoding, sources: Sources) -> Result<(), Error> {
    if matches!(tensor.encoding, Encoding::Plain(_)) || sources == Sources::Any {
        return Ok(());
    }
    let (name, from) = (&tensor.name, tensor.encoding);
    Err(Error::Source(format!(
        "`{name}` is quantized already ({from}), and making it {to} loses more than starting from the float model; if \
         that is meant, ask to requantize (`--requantize`, in the API `\"requantize\": true`)"
    )))
}

/// Returns the dtype of scales that are made from a tensor, as [`crate::TensorSource::float`] does.
fn float(tensor: &StoredTensor) -> Dtype {
    match tensor.encoding {
        Encoding::Plain(dtype) => dtype,
        encoding => encoding.float_of_scales(tensor.parts.get(1).map(|scale| scale.dtype)),
    }
}

/// Plans the blobs. A weight is placed in the blob of its codes. If its other arrays are in
/// separate blobs, all those blobs change together.
fn blobs(layers: &[Layer], tensors: &[StoredTensor], rows: &[TensorRow]) -> Result<Vec<BlobPlan>, Error> {
    let changed = changed_blobs(tensors, rows);
    let mut plans = Vec::new();
    for layer in layers.iter().filter(|layer| *layer.media_type() == media_types::TENSOR) {
        if !changed.contains(layer.digest()) {
            plans.push(BlobPlan::Keep(layer.clone()));
            continue;
        }
        let is_here = |tensor: &StoredTensor| tensor.parts.first().is_some_and(|codes| codes.blob == *layer.digest());
        let here = tensors.iter().zip(rows).filter(|(tensor, _)| is_here(tensor));
        let members: Vec<DerivedTensor> = here.filter_map(|(tensor, row)| DerivedTensor::new(tensor, row)).collect();
        if !members.is_empty() {
            plans.push(BlobPlan::Derive(Derivation::new(layer, members)?));
        }
    }
    Ok(plans)
}

fn changed_blobs(tensors: &[StoredTensor], rows: &[TensorRow]) -> HashSet<Digest> {
    let stays = |row: &TensorRow| matches!(row.decision, Decision::Keep(_));
    let moved = tensors.iter().zip(rows).filter(|(_, row)| !stays(row)).map(|(tensor, _)| tensor);
    let mut changed: HashSet<Digest> = moved.flat_map(blobs_of).collect();
    let spread: Vec<&StoredTensor> =
        tensors.iter().filter(|tensor| tensor.parts.iter().any(|part| part.blob != tensor.parts[0].blob)).collect();
    loop {
        let before = changed.len();
        for tensor in &spread {
            if blobs_of(tensor).any(|blob| changed.contains(&blob)) {
                changed.extend(blobs_of(tensor));
            }
        }
        if changed.len() == before {
            return changed;
        }
    }
}

fn blobs_of(tensor: &StoredTensor) -> impl Iterator<Item = Digest> + '_ {
    tensor.parts.iter().map(|part| part.blob)
}

#[cfg(test)]
mod tests;
