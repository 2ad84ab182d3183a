//! Facts about a whole model that rules need. They are derived from names and shapes only, so that
//! models of unsupported architectures can be quantized too.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

use super::part::TensorRole;

/// Facts about a model.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Architecture as the source names it.
    pub(super) architecture: String,
    /// Whether the model has no output matrix.
    pub(super) tied: bool,
    /// Number of experts of a layer; 0 if there are none.
    pub(super) experts: u64,
    /// Number of query heads per key and value head; 0 if unknown.
    pub(super) queries_per_key: u64,
    layers: u64,
    /// Positions of tensors among tensors of their kind, for the kinds that are counted.
    places: HashMap<String, CountedPosition>,
}

/// Position of a tensor among the tensors that are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedPosition {
    pub(super) index: u64,
    pub(super) count: u64,
}

impl Survey {
    /// Collects the facts from the names and shapes of all tensors.
    pub fn new<'a>(architecture: &str, tensors: impl Iterator<Item = (&'a str, &'a [u64])>) -> Self {
        let mut seen: Vec<Seen<'a>> = tensors.map(|(name, shape)| Seen::new(name, shape)).collect();
        seen.retain(|tensor| tensor.part != TensorRole::Modality);
        seen.sort_by_key(|tensor| (tensor.layer, tensor.name));
        let mut survey = Self {
            architecture: architecture.to_owned(),
            tied: !seen.iter().any(|tensor| tensor.part == TensorRole::Output),
            experts: seen.iter().filter_map(Seen::experts).max().unwrap_or(0),
            queries_per_key: queries_per_key(&seen).unwrap_or(0),
            layers: seen.iter().filter_map(|tensor| tensor.layer).max().map_or(0, |last| last + 1),
            places: HashMap::new(),
        };
        survey.count(&seen);
        survey
    }

    /// Counts positions as llama.cpp does: values among themselves. Down projections are counted by
    /// layer if there are experts, else among themselves; their count is the number of layers.
    fn count(&mut self, seen: &[Seen<'_>]) {
        let counted =
            |tensor: &&Seen<'_>, wanted: fn(TensorRole) -> bool| wanted(tensor.part) && tensor.shape.len() > 1;
        let values: Vec<_> = seen.iter().filter(|tensor| counted(tensor, TensorRole::has_values)).collect();
        let count = values.len() as u64;
        for (index, tensor) in (0..).zip(&values) {
            self.places.insert(tensor.name.to_owned(), CountedPosition { index, count });
        }
        let down = seen.iter().filter(|tensor| counted(tensor, |part| part == TensorRole::FfnDown));
        for (position, tensor) in (0..).zip(down) {
            let index = tensor.layer.filter(|_| self.experts > 1).unwrap_or(position);
            self.places.insert(tensor.name.to_owned(), CountedPosition { index, count: self.layers });
        }
    }

    /// Returns the position of a tensor. A tensor that is not counted has the position of its
    /// layer.
    pub(super) fn place(&self, name: &str) -> CountedPosition {
        let by_layer = || CountedPosition { index: layer(name).unwrap_or(0), count: self.layers };
        self.places.get(name).copied().unwrap_or_else(by_layer)
    }

    /// True for models that llama.cpp calls 70B.
    pub(super) fn is_70b(&self) -> bool {
        let grouped = self.architecture == "qwen2" || (self.architecture == "llama" && self.queries_per_key > 1);
        self.layers == 80 && grouped
    }
}

struct Seen<'a> {
    name: &'a str,
    shape: &'a [u64],
    part: TensorRole,
    layer: Option<u64>,
}

impl<'a> Seen<'a> {
    fn new(name: &'a str, shape: &'a [u64]) -> Self {
        Self { name, shape, part: TensorRole::of(name), layer: layer(name) }
    }

    /// Returns the number of experts, as far as this tensor shows it.
    fn experts(&self) -> Option<u64> {
        static EXPERT: LazyLock<Regex> = LazyLock::new(|| pattern(r"experts\.(\d+)\."));
        let is_ffn = matches!(self.part, TensorRole::FfnDown | TensorRole::FfnGate | TensorRole::FfnUp);
        match self.shape {
            [stack, _, _] if is_ffn => Some(*stack),
            _ => number(&EXPERT, self.name)?.checked_add(1),
        }
    }

    fn rows(&self) -> Option<u64> {
        self.shape.len().checked_sub(2).map(|at| self.shape[at])
    }
}

/// Derives the number of query heads per key head from the first matrices of each kind.
fn queries_per_key(seen: &[Seen<'_>]) -> Option<u64> {
    let first = |part: TensorRole| seen.iter().find(|tensor| tensor.part == part && tensor.shape.len() == 2);
    if let (Some(queries), Some(keys)) = (first(TensorRole::AttentionQ), first(TensorRole::AttentionK)) {
        return queries.rows()?.checked_div(keys.rows()?);
    }
    // The output matrix has as many columns as the queries have rows.
    let queries = *first(TensorRole::AttentionOutput)?.shape.last()?;
    let keys = first(TensorRole::AttentionQkv)?.rows()?.checked_sub(queries)? / 2;
    queries.checked_div(keys)
}

/// Returns the layer index in a tensor name.
fn layer(name: &str) -> Option<u64> {
    static LAYER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:^|\.)(?:layers|layer|blk|h|blocks|block)\.(\d+)\."));
    number(&LAYER, name)
}

fn number(pattern: &Regex, name: &str) -> Option<u64> {
    // Names are untrusted; no model has more layers or experts than this.
    pattern.captures(name)?.get(1)?.as_str().parse().ok().filter(|number| *number < 1 << 20)
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("invariant: the patterns of this file are part of the program, and its tests use them")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(tensors: &[(&str, &[u64])]) -> Survey {
        Survey::new("llama", tensors.iter().copied())
    }

    #[test]
    fn counts_values_and_projections() {
        let survey = survey(&[
            ("model.layers.10.self_attn.v_proj.weight", &[8, 64]),
            ("model.layers.2.self_attn.v_proj.weight", &[8, 64]),
            ("model.layers.2.self_attn.v_proj.bias", &[8]),
            ("model.layers.10.mlp.down_proj.weight", &[64, 128]),
        ]);
        let place = |name: &str| survey.place(name);
        assert_eq!(place("model.layers.2.self_attn.v_proj.weight"), CountedPosition { index: 0, count: 2 });
        assert_eq!(place("model.layers.10.self_attn.v_proj.weight"), CountedPosition { index: 1, count: 2 });
        assert_eq!(place("model.layers.10.mlp.down_proj.weight"), CountedPosition { index: 0, count: 11 });
        assert_eq!(place("model.layers.2.self_attn.q_proj.weight"), CountedPosition { index: 2, count: 11 });
        assert!(survey.tied && survey.experts == 0);
    }

    #[test]
    fn tells_heads_and_experts_from_shapes() {
        let split = survey(&[
            ("model.layers.0.self_attn.q_proj.weight", &[64, 32]),
            ("model.layers.0.self_attn.k_proj.weight", &[16, 32]),
            ("model.layers.3.mlp.experts.7.down_proj.weight", &[32, 16]),
            ("model.layers.5.mlp.experts.7.down_proj.weight", &[32, 16]),
            ("lm_head.weight", &[100, 32]),
        ]);
        assert_eq!((split.queries_per_key, split.experts, split.tied), (4, 8, false));
        // Counted by layer, although it is the first tensor that is counted.
        assert_eq!(
            split.place("model.layers.3.mlp.experts.7.down_proj.weight"),
            CountedPosition { index: 3, count: 6 }
        );
        let fused = survey(&[
            ("model.layers.0.self_attn.qkv_proj.weight", &[96, 64]),
            ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
            ("model.layers.0.mlp.experts.down_proj", &[16, 64, 32]),
        ]);
        assert_eq!((fused.queries_per_key, fused.experts), (4, 16));
    }
}
