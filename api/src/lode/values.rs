//! Statistics of the values of a tensor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/values`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValuesRequest {
    /// Name of the model.
    pub model: String,
    /// Name of the tensor, as in the list of `POST /api/show`.
    pub tensor: String,
    /// Number of histogram bins: 64 by default, 512 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bins: Option<u64>,
}

/// Response of `POST /api/lode/values`: statistics of the tensor's values, which are decoded if it
/// is quantized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValuesResponse {
    /// Full name of the model.
    pub model: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Data type.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Number of values in the tensor.
    pub numbers: u64,
    /// Number of sampled values: whole rows, evenly spread. All statistics below are of the sample.
    pub sampled: u64,
    /// Number of values that are infinite or NaN. The statistics below exclude them.
    pub not_finite: u64,
    /// Number of values that are 0.
    pub zeros: u64,
    /// Smallest value. Absent, like the next three fields, if no value is finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
    /// Histogram: number of values in each of the equal parts of the range from `min` to `max`.
    pub bins: Vec<u64>,
}
