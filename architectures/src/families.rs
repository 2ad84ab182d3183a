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

use crate::Error;
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

impl Family {
    /// All families, in the order in which they are tried.
    pub const ALL: &'static [&'static Self] = ALL;

    /// Returns the family with this user-visible name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|family| family.name == name)
    }

    /// Returns the family that reads GGUF files of this architecture.
    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        let is_called = |family: &&Self| {
            let mut also = family.gguf.also.iter();
            family.gguf.architecture == architecture || also.any(|alias| alias.architecture == architecture)
        };
        Self::ALL.iter().copied().filter(is_called).find(|family| family.gguf.read.is_some())
    }

    pub(crate) fn of_config(model_type: &str) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|family| family.model_types.contains(&model_type))
    }

    pub(crate) fn unknown(name: &str) -> Error {
        let supported: Vec<&str> = Self::ALL.iter().map(|family| family.name).collect();
        let lacks = LACKING.iter().find(|(own, _)| *own == name);
        let lacks = lacks.map(|(_, what)| format!(" (it needs {what})")).unwrap_or_default();
        Error::Unknown { name: name.chars().take(60).collect(), lacks, supported: supported.join(", ") }
    }
}
