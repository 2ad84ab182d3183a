//! What a quantization would do: the answer of `POST /api/create` with `dry_run`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What would become of every tensor, and in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuantizePlan {
    /// The type that was asked for, in its canonical spelling.
    pub quantize: String,
    /// Every tensor of the source, in its order.
    pub tensors: Vec<PlannedTensor>,
    /// Tensors that are encoded.
    pub encoded: u64,
    /// Tensors that stay as they are.
    pub kept: u64,
    /// Tensors that are left out.
    pub dropped: u64,
    /// Bytes of all tensors.
    pub before: u64,
    /// Bytes of all tensors in the new model.
    pub after: u64,
    /// Rules of the policy that no tensor meets, with their lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_rules: Vec<String>,
}

/// A tensor of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedTensor {
    /// Its canonical name.
    pub name: String,
    /// Its logical dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its type.
    pub from: String,
    /// Its type in the new model; `drop` where it is left out.
    pub to: String,
    /// Why it keeps its type: `policy`, `precision`, `misaligned`, `not-float` or `already`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its bytes.
    pub before: u64,
    /// Its bytes in the new model.
    pub after: u64,
}
