//! Model families, one file each. To add a family, write its file and list it here.

mod bert;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod internlm2;
mod lfm2;
mod llama;
mod minimax_m2;
mod mistral;
mod mixtral;
mod modernbert;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;
mod stablelm;
mod starcoder2;
mod xlm_roberta;

use crate::family::Family;

/// Missing features of requested architectures, by `model_type`: no blueprint can express them yet.
pub(crate) const LACKING: &[(&str, &str)] = &[
    ("llama4", LLAMA4),
    ("llama4_text", LLAMA4),
    ("paligemma", "prompts of which every token sees all others"),
    ("mllama", "layers that look at pictures"),
    ("mllama_text_model", "layers that look at pictures"),
];
const LLAMA4: &str = "attention in chunks, queries that grow with the position, norms of heads without weights, and experts whose \
                      inputs are scaled";

/// All families. The first family whose GGUF form matches reads a file.
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
    &cohere2::FAMILY,
    &exaone4::FAMILY,
    &gemma2::FAMILY,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &gpt2::FAMILY,
    &gpt_neox::FAMILY,
    &granitemoe::FAMILY,
    &modernbert::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &olmoe::FAMILY,
    &phi::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3_moe::FAMILY,
    &stablelm::FAMILY,
    &internlm2::FAMILY,
    &ernie4_5::FAMILY,
    &falcon::FAMILY,
    &minimax_m2::FAMILY,
];
