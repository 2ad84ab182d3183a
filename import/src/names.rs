//! Canonical tensor names: Hugging Face's, whatever the source.
//!
//! A GGUF file has names of its own. For the architectures that are known they are mapped here, by a table; the origin
//! document keeps both names. Files of other architectures keep their names, so that nothing is mapped wrongly.

/// Outside of layers.
const MODEL: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    ("rope_freqs.weight", "model.rope_freqs.weight"),
];

/// Inside a layer, without `blk.N.` and `model.layers.N.`, and without `.weight` or `.bias`.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
];

/// What an architecture calls differently.
const LLAMA: &[(&str, &str)] = &[("ffn_norm", "post_attention_layernorm")];
const GEMMA3: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The canonical name of a tensor of a GGUF file of that architecture.
pub(crate) fn from_gguf(architecture: &str, name: &str) -> String {
    let own = match architecture {
        "llama" => LLAMA,
        "gemma3" => GEMMA3,
        _ => return name.to_owned(),
    };
    let find = |table: &'static [(&str, &'static str)], key: &str| {
        table.iter().find(|(from, _)| *from == key).map(|(_, to)| *to)
    };
    if let Some(to) = find(MODEL, name) {
        return to.to_owned();
    }
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (module, kind) = rest.rsplit_once('.')?;
        let to = find(own, module).or_else(|| find(LAYER, module))?;
        let plain = layer.bytes().all(|b| b.is_ascii_digit()) && matches!(kind, "weight" | "bias");
        plain.then(|| format!("model.layers.{layer}.{to}.{kind}"))
    };
    in_layer().unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_by_architecture() {
        for (architecture, name, expect) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            ("llama", "blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
            ("llama", "blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
            ("gemma3", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("llama", "blk.0.something.weight", "blk.0.something.weight"),
            ("llama", "blk.x.attn_q.weight", "blk.x.attn_q.weight"),
            ("mamba", "token_embd.weight", "token_embd.weight"),
        ] {
            assert_eq!(from_gguf(architecture, name), expect);
        }
    }
}
