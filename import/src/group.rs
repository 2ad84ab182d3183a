//! Which tensors share a blob: the experts of a layer, and its shared experts.

const MODULES: [&str; 5] = ["mlp", "moe", "block_sparse_moe", "feed_forward", "mixer"];
const EXPERTS: [&str; 3] = ["experts", "shared_experts", "switch_mlp"];

/// The group that a tensor belongs to, e.g. `model.layers.3.mlp.experts`; `None` for tensors with a blob of their own.
pub(crate) fn group(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('.').collect();
    let found = parts.windows(4).rposition(|window| {
        let digits = !window[1].is_empty() && window[1].bytes().all(|b| b.is_ascii_digit());
        window[0] == "layers" && digits && MODULES.contains(&window[2]) && EXPERTS.contains(&window[3])
    })?;
    let length = parts[..found + 4].iter().map(|part| part.len() + 1).sum::<usize>() - 1;
    // Something must follow: the group's prefix alone is a tensor like any other.
    (name.len() > length + 1).then(|| &name[..length])
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
        ] {
            assert_eq!(group(name), expect, "{name}");
        }
    }
}
