//! Projections of a blueprint that adapters change, under names that do not depend on how a file
//! stores experts.
//!
//! | name in the file | module | expert |
//! |---|---|---|
//! | `…0.mlp.experts.3.up_proj` (folders) | `…0.mlp.experts.up_proj` | 3 |
//! | `…0.block_sparse_moe.experts.3.w3` (Mixtral) | `…0.mlp.experts.up_proj` | 3 |
//! | `…0.mlp.experts.up_proj` (GGUF files, transformers 5) | the same | all |
//! | `…0.mlp.switch_mlp.up_proj` (MLX) | `…0.mlp.experts.up_proj` | all |
//! | `transformer.h.0.mlp.c_fc` and `h.0.mlp.c_fc` (GPT-2) | `h.0.mlp.c_fc` | none |
//!
//! `…0` stands for `model.layers.0`.

use crate::blueprint::{Adaptable, Blueprint, Rows};
use crate::family::Family;

/// Name of a projection that an adapter changes.
///
/// # Examples
///
/// ```
/// use lode_architectures::AdaptedName;
///
/// let name = AdaptedName::parse("model.layers.0.mlp.experts.3.up_proj");
/// assert_eq!(name.module, "model.layers.0.mlp.experts.up_proj");
/// assert_eq!(name.expert, Some(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdaptedName {
    /// Name of the projection, without the index of an expert.
    pub module: String,
    /// Index of the expert, if the name contains one.
    pub expert: Option<u64>,
}

impl AdaptedName {
    /// Parses the canonical name of a projection or its weight, without `.weight`.
    pub fn parse(name: &str) -> Self {
        let name = crate::names::of_folder(name);
        let name = name.strip_prefix("transformer.").filter(|rest| rest.starts_with("h.")).unwrap_or(&name);
        let (mut parts, mut expert) = (Vec::new(), None);
        for part in name.split('.') {
            let is_after = |module: &str| parts.last().is_some_and(|last| *last == module);
            if is_after("experts")
                && let Ok(number) = part.parse::<u64>()
            {
                expert = Some(number);
                continue;
            }
            // Names of Granite's fused experts.
            if part == "input_linear" || part == "output_linear" {
                parts.extend(["experts", if part == "input_linear" { "gate_up_proj" } else { "down_proj" }]);
                continue;
            }
            parts.push(match part {
                "switch_mlp" => "experts",
                "block_sparse_moe" => "mlp",
                "w1" if is_after("experts") => "gate_proj",
                "w2" if is_after("experts") => "down_proj",
                "w3" if is_after("experts") => "up_proj",
                other => other,
            });
        }
        Self { module: parts.join("."), expert }
    }
}

impl Blueprint {
    /// Returns all targets that adapters can change.
    pub fn adaptable(&self) -> Vec<Adaptable<'_>> {
        crate::blueprint::adaptable(self)
    }
}

impl Family {
    /// True if rows of gate and up alternate in the family's fused projections. The family's
    /// folders store those projections transposed.
    pub fn has_alternating_experts(&self) -> bool {
        self.name == "gpt_oss"
    }

    /// Returns the rows of a fused gate and up projection that belong to the gate (`which` is 0) or
    /// to up (1); each has `width` rows.
    pub fn rows_of_fused_experts(&self, which: u64, width: u64) -> Rows {
        if self.has_alternating_experts() {
            return Rows::every_second(which, width);
        }
        Rows::run(which.saturating_mul(width), width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_depend_on_how_experts_are_stored() {
        for (name, module, expert) in [
            ("model.layers.0.mlp.experts.3.up_proj", "model.layers.0.mlp.experts.up_proj", Some(3)),
            ("model.layers.0.block_sparse_moe.experts.12.w1", "model.layers.0.mlp.experts.gate_proj", Some(12)),
            ("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate", None),
            ("model.layers.0.mlp.switch_mlp.down_proj", "model.layers.0.mlp.experts.down_proj", None),
            ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.gate_up_proj", None),
            ("model.language_model.layers.7.self_attn.q_proj", "model.layers.7.self_attn.q_proj", None),
            ("transformer.h.4.attn.c_attn", "h.4.attn.c_attn", None),
            ("transformer.wte", "transformer.wte", None),
            ("model.layers.0.feed_forward.w1", "model.layers.0.feed_forward.w1", None),
        ] {
            assert_eq!(AdaptedName::parse(name), AdaptedName { module: module.to_owned(), expert }, "{name}");
        }
    }
}
