//! The families, a file each. To add one: write its file and list it here.

mod gemma;
mod gemma3;
mod granite;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;

use crate::family::Family;

/// Every family. A GGUF file is read by the first whose form it has.
pub(crate) const ALL: &[&Family] = &[
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma::FAMILY,
    &gemma3::FAMILY,
    &smollm3::FAMILY,
    &granite::FAMILY,
    &phi3::FAMILY,
];
