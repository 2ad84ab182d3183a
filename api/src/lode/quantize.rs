//! Plan of a quantization: the response of `POST /api/create` with `dry_run`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The effect of a quantization on each tensor, and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuantizePlan {
    /// The requested type, in its canonical spelling.
    pub quantize: String,
    /// All tensors of the source, in order.
    pub tensors: Vec<PlannedTensor>,
    /// Number of tensors that are encoded.
    pub encoded: u64,
    /// Number of tensors that keep their encoding.
    pub kept: u64,
    /// Number of tensors that are left out.
    pub dropped: u64,
    /// Bytes of all tensors in the source.
    pub before: u64,
    /// Bytes of all tensors in the new model.
    pub after: u64,
    /// Policy rules that match no tensor, with their line numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_rules: Vec<String>,
}

/// A tensor in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedTensor {
    /// Canonical name.
    pub name: String,
    /// Logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Type in the source.
    pub from: String,
    /// Type in the new model; `drop` if the tensor is left out.
    pub to: String,
    /// Why the tensor keeps its type: `policy`, `precision`, `misaligned`, `not-float` or
    /// `already`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes in the source.
    pub before: u64,
    /// Bytes in the new model.
    pub after: u64,
}
