//! The text side of a loaded model: tokenizer and chat template, and its settings for embeddings
//! and rankings. It knows no decoder.

pub(crate) mod model;
pub(crate) mod picture_text;
pub(crate) mod pooling;
pub(crate) mod ranking;
pub(crate) mod renderer;
pub(crate) mod rendering;
pub(crate) mod scorer;
pub(crate) mod sentence;
pub(crate) mod shorten;
pub(crate) mod text_model;
