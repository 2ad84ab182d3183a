//! Architectures as descriptions of the one decoder.
//!
//! What differs between architectures in numbers is in `formats::HyperParameters`. What differs in structure is here:
//! where norms are and what the tensors are called.

use formats::hyper::Architecture;

/// The structure of a decoder layer. Names are below `model.layers.N.`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    /// Norm before attention.
    pub(crate) attention_norm: &'static str,
    /// Norm of what attention adds to the stream.
    pub(crate) attention_post_norm: Option<&'static str>,
    /// Norm before the MLP.
    pub(crate) mlp_norm: &'static str,
    /// Norm of what the MLP adds to the stream.
    pub(crate) mlp_post_norm: Option<&'static str>,
    /// Query and key heads are normed.
    pub(crate) head_norms: bool,
}

const LLAMA: Description = Description {
    attention_norm: "input_layernorm",
    attention_post_norm: None,
    mlp_norm: "post_attention_layernorm",
    mlp_post_norm: None,
    head_norms: false,
};

const GEMMA3: Description = Description {
    attention_norm: "input_layernorm",
    attention_post_norm: Some("post_attention_layernorm"),
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: Some("post_feedforward_layernorm"),
    head_norms: true,
};

/// The description of an architecture.
pub(crate) fn of(architecture: Architecture) -> Description {
    match architecture {
        Architecture::Llama => LLAMA,
        Architecture::Gemma3 => GEMMA3,
    }
}
