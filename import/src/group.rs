//! Grouping of tensors into blobs: the experts of a layer share a blob, and so do its shared
//! experts. The rules use names only and do not depend on the architecture.

use std::borrow::Cow;

const MODULES: [&str; 5] = ["mlp", "moe", "block_sparse_moe", "feed_forward", "mixer"];
const EXPERTS: [&str; 3] = ["experts", "shared_experts", "switch_mlp"];
/// Beginnings of the names of experts' tensors in a layer of a GGUF file; the kind of experts
/// follows.
const GGUF_PROJECTIONS: [&str; 4] = ["ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up"];
const GGUF_EXPERTS: [&str; 2] = ["exps", "shexp"];

/// Returns the group of a tensor, e.g. `model.layers.3.mlp.experts` or `blk.3.ffn_exps`; `None` for
/// a tensor in a separate blob.
pub(crate) fn group(name: &str) -> Option<Cow<'_, str>> {
    by_module(name).map(Cow::Borrowed).or_else(|| of_gguf(name).map(Cow::Owned))
}

fn by_module(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('.').collect();
    let found = parts.windows(4).rposition(|window| {
        let experts = MODULES.contains(&window[2]) && EXPERTS.contains(&window[3]);
        window[0] == "layers" && is_number(window[1]) && experts
    })?;
    let length = parts[..found + 4].iter().map(|part| part.len() + 1).sum::<usize>() - 1;
    // A name must follow the prefix of the group; the prefix alone is an ordinary tensor.
    (name.len() > length + 1).then(|| &name[..length])
}

fn of_gguf(name: &str) -> Option<String> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (module, kind) = rest.split_once('.')?;
    let (projection, experts) = module.rsplit_once('_')?;
    let known = GGUF_PROJECTIONS.contains(&projection) && GGUF_EXPERTS.contains(&experts);
    (is_number(layer) && known && !kind.is_empty()).then(|| format!("blk.{layer}.ffn_{experts}"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_experts_only() {
        for (name, expect) in [
            ("model.layers.3.mlp.experts.0.up_proj.weight", Some("model.layers.3.mlp.experts")),
            ("layers.0.mixer.shared_experts.w", Some("layers.0.mixer.shared_experts")),
            ("a.b.layers.12.block_sparse_moe.experts.7.w1.weight", Some("a.b.layers.12.block_sparse_moe.experts")),
            ("model.layers.3.mlp.experts.gate_up_proj", Some("model.layers.3.mlp.experts")),
            ("model.layers.3.mlp.switch_mlp.up_proj.weight", Some("model.layers.3.mlp.switch_mlp")),
            ("model.layers.3.mlp.gate.weight", None),
            ("model.layers.3.mlp.shared_expert.up_proj.weight", None),
            ("model.layers.x.mlp.experts.0.w", None),
            ("model.layers.3.mlp.experts", None),
            ("model.layers.3.mlp.experts.", None),
            ("lm_head.weight", None),
            ("blk.3.ffn_gate_exps.weight", Some("blk.3.ffn_exps")),
            ("blk.12.ffn_gate_up_exps.weight", Some("blk.12.ffn_exps")),
            ("blk.3.ffn_down_exps.bias", Some("blk.3.ffn_exps")),
            ("blk.0.ffn_up_shexp.weight", Some("blk.0.ffn_shexp")),
            ("blk.0.ffn_gate_inp.weight", None),
            ("blk.0.ffn_gate_inp_shexp.weight", None),
            ("blk.0.ffn_norm_exps.weight", None),
            ("blk.0.ffn_gate.0.weight", None),
            ("blk.x.ffn_gate_exps.weight", None),
            ("blk.0.ffn_gate_exps.", None),
        ] {
            assert_eq!(group(name).as_deref(), expect, "{name}");
        }
    }
}
