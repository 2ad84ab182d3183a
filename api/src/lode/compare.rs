//! The difference of two models.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiffRequest {
    /// A model.
    pub a: String,
    /// Another.
    pub b: String,
    /// Compute how far the numbers are apart.
    pub values: bool,
}

/// Answer of `POST /api/lode/diff`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffResponse {
    /// The first model's name, complete.
    pub a: String,
    /// The second model's.
    pub b: String,
    /// Tensors that are the same in both.
    pub equal_tensors: u64,
    /// Tensors that differ or that only one has.
    pub tensors: Vec<TensorDiff>,
    /// Other layers that differ or that only one has.
    pub layers: Vec<LayerDiff>,
    /// Blobs that only the second model has.
    pub added_blobs: u64,
    /// Their bytes: what the second model takes where the first one is.
    pub added_bytes: u64,
}

/// A tensor that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorDiff {
    /// Its name.
    pub name: String,
    /// As it is in the first model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<TensorSide>,
    /// As it is in the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<TensorSide>,
    /// How far the numbers are apart, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<ValueDiff>,
}

/// A tensor in one of two models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TensorSide {
    /// Its type.
    pub dtype: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its length in bytes.
    pub size: u64,
}

/// How far the numbers of two tensors are apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ValueDiff {
    /// They were compared.
    Computed {
        /// How many pairs: all of them, or where one of the tensors is quantized about a million.
        #[serde(default)]
        compared: u64,
        /// The largest difference of two numbers that were compared.
        max: f64,
        /// The root of the mean square of the differences.
        rms: f64,
        /// Pairs of which one is not finite; they are in neither of the above.
        not_finite: u64,
    },
    /// Why there is nothing to compare.
    NotAvailable(String),
}

/// A layer that is not a tensor and differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerDiff {
    /// Its name, or what its media type says: `config`, `template`, …
    pub name: String,
    /// The blob in the first model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// The blob in the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
}
