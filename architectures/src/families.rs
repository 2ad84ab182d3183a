//! The families, a file each. To add one: write its file and list it here.

mod bert;
mod deepseek_v2;
mod deepseek_v3;
mod gemma;
mod gemma3;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mistral;
mod mixtral;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod smollm3;
mod starcoder2;
mod xlm_roberta;

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
    &mixtral::FAMILY,
    &starcoder2::FAMILY,
    &deepseek_v2::FAMILY,
    &deepseek_v3::FAMILY,
    &lfm2::FAMILY,
    &qwen3_next::FAMILY,
    &gpt_oss::FAMILY,
    &bert::FAMILY,
    &xlm_roberta::FAMILY,
];
