//! Names of the norms of layers.

/// Names of the norms of a layer, below `model.layers.N.`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormNames {
    pub(crate) before_mixer: Option<&'static str>,
    pub(crate) after_mixer: Option<&'static str>,
    pub(crate) before_ffn: Option<&'static str>,
    pub(crate) after_ffn: Option<&'static str>,
}

/// Norms before attention and before the feed-forward network.
pub(crate) const PRE_NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("post_attention_layernorm"),
    after_ffn: None,
};

/// Norms after attention and after the feed-forward network only.
pub(crate) const POST_NORMS: NormNames = NormNames {
    before_mixer: None,
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: None,
    after_ffn: Some("post_feedforward_layernorm"),
};

/// Norms before and after both.
pub(crate) const ALL_NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: Some("pre_feedforward_layernorm"),
    after_ffn: Some("post_feedforward_layernorm"),
};

/// One norm for attention and feed-forward network, which both read its output.
pub(crate) const ONE_NORM: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("input_layernorm"),
    after_ffn: None,
};
