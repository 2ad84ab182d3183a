//! Tensor names that version 0.1 assigned when it imported GGUF files. Blobs of that version
//! contain them, so this table never changes, even if the tables of families do.

use crate::name_tables::Table;
use crate::names::{in_layer, to_gguf};

const MODEL: Table = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    ("rope_freqs.weight", "model.rope_freqs.weight"),
];

const LAYER: Table = &[
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

const LLAMA: Table = &[("ffn_norm", "post_attention_layernorm")];
const GEMMA3: Table = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Returns the name that a tensor had in the GGUF file, from the file's architecture and the name
/// in the blob. Names that 0.1 did not assign stay unchanged: names of other architectures, and
/// GGUF names, which later versions keep.
pub fn source_name(architecture: &str, name: &str) -> String {
    let own = match architecture {
        "llama" => LLAMA,
        "gemma3" => GEMMA3,
        _ => return name.to_owned(),
    };
    let in_layer = || {
        let (layer, module, kind) = in_layer(name, "model.layers.")?;
        let module = to_gguf(own, module).or_else(|| to_gguf(LAYER, module))?;
        Some(format!("blk.{layer}.{module}.{kind}"))
    };
    to_gguf(MODEL, name).map(str::to_owned).or_else(in_layer).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_0_1_lead_back() {
        for (architecture, name, expect) in [
            ("llama", "model.embed_tokens.weight", "token_embd.weight"),
            ("llama", "model.layers.7.mlp.experts.gate_proj.weight", "blk.7.ffn_gate_exps.weight"),
            ("llama", "model.layers.7.post_attention_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("gemma3", "model.layers.7.post_attention_layernorm.weight", "blk.7.post_attention_norm.weight"),
            ("llama", "blk.7.attn_q.weight", "blk.7.attn_q.weight"),
            ("qwen2", "model.norm.weight", "model.norm.weight"),
        ] {
            assert_eq!(source_name(architecture, name), expect);
        }
    }
}
