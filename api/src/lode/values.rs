//! What numbers a tensor has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/values`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValuesRequest {
    /// Name of the model.
    pub model: String,
    /// Name of the tensor, as `POST /api/show` lists it.
    pub tensor: String,
    /// How many bins the histogram has; 64 where it is not said, 512 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bins: Option<u64>,
}

/// Answer of `POST /api/lode/values`: statistics of the tensor's numbers, decoded where it is quantized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValuesResponse {
    /// Name of the model, complete.
    pub model: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Its type.
    pub dtype: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// How many numbers it has.
    pub numbers: u64,
    /// How many were looked at: whole rows, spread evenly. All others are of these.
    pub sampled: u64,
    /// Those that are infinite or no number; they are in nothing below.
    pub not_finite: u64,
    /// Those that are 0.
    pub zeros: u64,
    /// The smallest; absent where no number is finite, as the next three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// The standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
    /// How many are in each of as many equal parts of the range from `min` to `max`.
    pub bins: Vec<u64>,
}
