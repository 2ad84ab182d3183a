//! The difference of two models.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiffRequest {
    /// Name of the first model.
    pub a: String,
    /// Name of the second model.
    pub b: String,
    /// Whether to compute the numeric difference of tensors.
    pub values: bool,
}

/// Response of `POST /api/lode/diff`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffResponse {
    /// Full name of the first model.
    pub a: String,
    /// Full name of the second model.
    pub b: String,
    /// Number of tensors that are equal in both models.
    pub equal_tensors: u64,
    /// Tensors that differ or are in one model only.
    pub tensors: Vec<TensorDiff>,
    /// Other layers that differ or are in one model only.
    pub layers: Vec<LayerDiff>,
    /// Number of blobs that only the second model has.
    pub added_blobs: u64,
    /// Bytes of those blobs: the additional disk space of the second model.
    pub added_bytes: u64,
}

/// A tensor that differs between the models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorDiff {
    /// Name of the tensor.
    pub name: String,
    /// The tensor in the first model, if it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<TensorSide>,
    /// The tensor in the second model, if it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<TensorSide>,
    /// Numeric difference, if the request asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<ValueDiff>,
}

/// A tensor in one of the two models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TensorSide {
    /// Data type.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Size in bytes.
    pub size: u64,
}

/// Numeric difference of two tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ValueDiff {
    /// The numbers were compared.
    Computed {
        /// Number of compared pairs: all, or about a million if one of the tensors is quantized.
        #[serde(default)]
        compared: u64,
        /// Largest absolute difference of a pair.
        max: f64,
        /// Root mean square of the differences.
        rms: f64,
        /// Pairs with a number that is not finite. `max` and `rms` do not include them.
        not_finite: u64,
    },
    /// The tensors cannot be compared, for this reason.
    NotAvailable(String),
}

/// A layer that is not a tensor and differs between the models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerDiff {
    /// Name of the layer, or a word for its media type: `config`, `template`, …
    pub name: String,
    /// Digest of the blob in the first model, if it has the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// Digest of the blob in the second model, if it has the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
}
