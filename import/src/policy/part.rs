//! Functions of tensors in a model.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

/// Function of a tensor in a model, as far as it determines the required precision. Derived from
/// the name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TensorRole {
    /// Part of an encoder of images or sounds, or its connection to the model.
    Modality,
    Bias,
    Norm,
    /// Gate that selects experts.
    Router,
    Convolution,
    /// Embeddings of positions and token types.
    Position,
    /// Small tensors that are not matrix factors.
    Fixed,
    /// Matrix with inputs as rows.
    Transposed,
    /// Output matrix, which computes the logits.
    Output,
    /// Token embedding.
    Embedding,
    /// Token embedding of each layer.
    LayerEmbedding,
    /// Queries, keys and values in one matrix.
    AttentionQkv,
    /// Projection from latents to keys and values.
    AttentionKvB,
    AttentionV,
    AttentionK,
    AttentionQ,
    AttentionOutput,
    FfnDown,
    FfnGate,
    FfnUp,
    /// Any other matrix.
    Matrix,
    /// Any other tensor.
    Other,
}

impl TensorRole {
    /// Returns the function of a tensor with this name.
    pub(super) fn of(name: &str) -> Self {
        static PATTERNS: LazyLock<Vec<(Regex, TensorRole)>> =
            LazyLock::new(|| patterns().expect("invariant: a test reads the table, which is part of the program"));
        PATTERNS.iter().find(|(pattern, _)| pattern.is_match(name)).map_or(Self::Other, |(_, part)| *part)
    }

    /// True for projections of values, alone or combined with queries or keys: llama.cpp counts
    /// them as one kind.
    pub(super) fn has_values(self) -> bool {
        matches!(self, Self::AttentionV | Self::AttentionQkv | Self::AttentionKvB)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireParts {
    part: Vec<WirePart>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WirePart {
    part: TensorRole,
    name: String,
}

/// Returns the patterns of names in order of precedence.
fn patterns() -> Result<Vec<(Regex, TensorRole)>, String> {
    let parts: WireParts = toml::from_str(include_str!("tables/parts.toml")).map_err(|error| error.to_string())?;
    let pattern = |wire: WirePart| Ok((Regex::new(&wire.name).map_err(|error| error.to_string())?, wire.part));
    parts.part.into_iter().map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of `DeepSeek` V4, as it is published, and in GGUF files.
    #[test]
    fn tells_parts_of_published_models() {
        for (name, part) in [
            ("layers.0.ffn.gate.weight", TensorRole::Router),
            ("layers.0.attn.compressor.wkv.weight", TensorRole::Fixed),
            ("layers.0.attn.wkv.weight", TensorRole::Matrix),
            ("blk.0.attn_compressor_gate.weight", TensorRole::Fixed),
            ("blk.0.hc_attn_fn.weight", TensorRole::Fixed),
            ("embed.weight", TensorRole::Embedding),
            ("head.weight", TensorRole::Output),
        ] {
            assert_eq!(TensorRole::of(name), part, "{name}");
        }
    }

    #[test]
    fn tells_parts_by_names() {
        for (name, part) in [
            ("model.layers.0.self_attn.v_proj.weight", TensorRole::AttentionV),
            ("model.layers.0.self_attn.q_proj.bias", TensorRole::Bias),
            ("model.layers.0.self_attn.q_norm.weight", TensorRole::Norm),
            ("model.layers.0.self_attn.o_proj.weight", TensorRole::AttentionOutput),
            ("model.layers.0.self_attn.qkv_proj.weight", TensorRole::AttentionQkv),
            ("model.layers.0.self_attn.kv_b_proj.weight", TensorRole::AttentionKvB),
            ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", TensorRole::Matrix),
            ("model.layers.0.mlp.down_proj.weight", TensorRole::FfnDown),
            ("model.layers.0.mlp.gate_up_proj.weight", TensorRole::FfnUp),
            ("model.layers.0.mlp.gate.weight", TensorRole::Router),
            ("model.layers.0.mlp.gate.e_score_correction_bias", TensorRole::Bias),
            ("model.layers.0.mlp.shared_expert_gate.weight", TensorRole::Router),
            ("model.layers.0.mlp.shared_expert.down_proj.weight", TensorRole::FfnDown),
            ("model.layers.0.mlp.experts.3.down_proj.weight", TensorRole::FfnDown),
            ("model.layers.0.mlp.experts.gate_up_proj", TensorRole::FfnUp),
            ("model.layers.0.mlp.experts.down_proj_bias", TensorRole::Bias),
            ("model.layers.0.mlp.router.weight", TensorRole::Router),
            ("model.layers.0.block_sparse_moe.experts.0.w2.weight", TensorRole::FfnDown),
            ("model.layers.0.block_sparse_moe.gate.weight", TensorRole::Router),
            ("model.layers.0.input_layernorm.weight", TensorRole::Norm),
            ("model.layers.0.linear_attn.conv1d.weight", TensorRole::Convolution),
            ("model.layers.0.linear_attn.A_log", TensorRole::Fixed),
            ("model.layers.0.linear_attn.out_proj.weight", TensorRole::Matrix),
            ("model.layers.0.conv.conv.weight", TensorRole::Convolution),
            ("model.layers.0.conv.in_proj.weight", TensorRole::Matrix),
            ("model.layers.0.self_attn.sinks", TensorRole::Fixed),
            ("model.embed_tokens.weight", TensorRole::Embedding),
            ("lm_head.weight", TensorRole::Output),
            ("model.norm.weight", TensorRole::Norm),
            ("h.0.attn.c_attn.weight", TensorRole::Transposed),
            ("transformer.h.3.mlp.c_proj.weight", TensorRole::Transposed),
            ("h.0.ln_1.weight", TensorRole::Norm),
            ("wte.weight", TensorRole::Embedding),
            ("wpe.weight", TensorRole::Position),
            ("gpt_neox.layers.0.attention.query_key_value.weight", TensorRole::AttentionQkv),
            ("gpt_neox.layers.0.mlp.dense_4h_to_h.weight", TensorRole::FfnDown),
            ("gpt_neox.embed_in.weight", TensorRole::Embedding),
            ("embed_out.weight", TensorRole::Output),
            ("encoder.layer.0.attention.self.value.weight", TensorRole::AttentionV),
            ("encoder.layer.0.attention.output.dense.weight", TensorRole::AttentionOutput),
            ("encoder.layer.0.output.dense.weight", TensorRole::FfnDown),
            ("encoder.layer.0.intermediate.dense.weight", TensorRole::FfnUp),
            ("embeddings.word_embeddings.weight", TensorRole::Embedding),
            ("embeddings.token_type_embeddings.weight", TensorRole::Position),
            ("model.visual.blocks.0.attn.qkv.weight", TensorRole::Modality),
            ("blk.0.ffn_down_exps.weight", TensorRole::FfnDown),
            ("blk.0.ffn_gate_inp.weight", TensorRole::Router),
            ("blk.0.attn_v.weight", TensorRole::AttentionV),
            ("token_embd.weight", TensorRole::Embedding),
            ("output.weight", TensorRole::Output),
            ("output_norm.weight", TensorRole::Norm),
            ("rope_freqs.weight", TensorRole::Fixed),
            ("something", TensorRole::Other),
        ] {
            assert_eq!(TensorRole::of(name), part, "{name}");
        }
    }
}
