//! Tables of names in GGUF files that several families share.

/// Rows of a table: GGUF's name and the canonical name.
pub(crate) type Table = &'static [(&'static str, &'static str)];

/// Name of the second norm in families with norms before the parts of a layer.
pub(crate) const PRE_NORMS: Table = &[("ffn_norm", "post_attention_layernorm")];

/// Names of the norms in families with norms only after the parts of a layer.
pub(crate) const POST_NORMS: Table =
    &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

/// Names of the tensors outside of layers in encoders with `RoPE`.
pub(crate) const ENCODERS: Table = &[
    ("token_embd.weight", "embeddings.word_embeddings.weight"),
    ("token_types.weight", "embeddings.token_type_embeddings.weight"),
    ("token_embd_norm.weight", "emb_ln.weight"),
    ("token_embd_norm.bias", "emb_ln.bias"),
];

/// Names of the norms in families with norms before and after the parts of a layer.
pub(crate) const ALL_NORMS: Table = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
