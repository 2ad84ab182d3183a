//! Functions of tensors in a model.

use serde::Deserialize;

use super::tables;

/// Function of a tensor in a model, as far as it determines the required precision. Derived from
/// the name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
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

impl Part {
    /// Returns the function of a tensor with this name.
    pub(super) fn of(name: &str) -> Self {
        let parts = &tables::tables().parts;
        parts.iter().find(|(pattern, _)| pattern.is_match(name)).map_or(Self::Other, |(_, part)| *part)
    }

    /// True for projections of values, alone or combined with queries or keys: llama.cpp counts
    /// them as one kind.
    pub(super) fn has_values(self) -> bool {
        matches!(self, Self::AttentionV | Self::AttentionQkv | Self::AttentionKvB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_parts_by_names() {
        for (name, part) in [
            ("model.layers.0.self_attn.v_proj.weight", Part::AttentionV),
            ("model.layers.0.self_attn.q_proj.bias", Part::Bias),
            ("model.layers.0.self_attn.q_norm.weight", Part::Norm),
            ("model.layers.0.self_attn.o_proj.weight", Part::AttentionOutput),
            ("model.layers.0.self_attn.qkv_proj.weight", Part::AttentionQkv),
            ("model.layers.0.self_attn.kv_b_proj.weight", Part::AttentionKvB),
            ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", Part::Matrix),
            ("model.layers.0.mlp.down_proj.weight", Part::FfnDown),
            ("model.layers.0.mlp.gate_up_proj.weight", Part::FfnUp),
            ("model.layers.0.mlp.gate.weight", Part::Router),
            ("model.layers.0.mlp.gate.e_score_correction_bias", Part::Bias),
            ("model.layers.0.mlp.shared_expert_gate.weight", Part::Router),
            ("model.layers.0.mlp.shared_expert.down_proj.weight", Part::FfnDown),
            ("model.layers.0.mlp.experts.3.down_proj.weight", Part::FfnDown),
            ("model.layers.0.mlp.experts.gate_up_proj", Part::FfnUp),
            ("model.layers.0.mlp.experts.down_proj_bias", Part::Bias),
            ("model.layers.0.mlp.router.weight", Part::Router),
            ("model.layers.0.block_sparse_moe.experts.0.w2.weight", Part::FfnDown),
            ("model.layers.0.block_sparse_moe.gate.weight", Part::Router),
            ("model.layers.0.input_layernorm.weight", Part::Norm),
            ("model.layers.0.linear_attn.conv1d.weight", Part::Convolution),
            ("model.layers.0.linear_attn.A_log", Part::Fixed),
            ("model.layers.0.linear_attn.out_proj.weight", Part::Matrix),
            ("model.layers.0.conv.conv.weight", Part::Convolution),
            ("model.layers.0.conv.in_proj.weight", Part::Matrix),
            ("model.layers.0.self_attn.sinks", Part::Fixed),
            ("model.embed_tokens.weight", Part::Embedding),
            ("lm_head.weight", Part::Output),
            ("model.norm.weight", Part::Norm),
            ("h.0.attn.c_attn.weight", Part::Transposed),
            ("transformer.h.3.mlp.c_proj.weight", Part::Transposed),
            ("h.0.ln_1.weight", Part::Norm),
            ("wte.weight", Part::Embedding),
            ("wpe.weight", Part::Position),
            ("gpt_neox.layers.0.attention.query_key_value.weight", Part::AttentionQkv),
            ("gpt_neox.layers.0.mlp.dense_4h_to_h.weight", Part::FfnDown),
            ("gpt_neox.embed_in.weight", Part::Embedding),
            ("embed_out.weight", Part::Output),
            ("encoder.layer.0.attention.self.value.weight", Part::AttentionV),
            ("encoder.layer.0.attention.output.dense.weight", Part::AttentionOutput),
            ("encoder.layer.0.output.dense.weight", Part::FfnDown),
            ("encoder.layer.0.intermediate.dense.weight", Part::FfnUp),
            ("embeddings.word_embeddings.weight", Part::Embedding),
            ("embeddings.token_type_embeddings.weight", Part::Position),
            ("model.visual.blocks.0.attn.qkv.weight", Part::Modality),
            ("blk.0.ffn_down_exps.weight", Part::FfnDown),
            ("blk.0.ffn_gate_inp.weight", Part::Router),
            ("blk.0.attn_v.weight", Part::AttentionV),
            ("token_embd.weight", Part::Embedding),
            ("output.weight", Part::Output),
            ("output_norm.weight", Part::Norm),
            ("rope_freqs.weight", Part::Fixed),
            ("something", Part::Other),
        ] {
            assert_eq!(Part::of(name), part, "{name}");
        }
    }
}
