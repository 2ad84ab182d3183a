//! Model families, one file each. To add a family, write its file and list it here.

mod afmoe;
mod apertus;
mod arcee;
mod bamba;
mod bert;
mod bitnet;
mod bloom;
mod codegen;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod dbrx;
mod deepseek;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod distilbert;
mod dots1;
mod embedding_gemma2;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod flex_olmo;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_swa;
mod granitemoe;
mod granitemoehybrid;
mod gte;
mod helium;
mod hunyuan;
mod hunyuan_moe;
mod hy_v3;
mod internlm2;
mod jais2;
mod jamba;
mod jina_embeddings_v3;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod mellum;
mod mimo_v2_flash;
mod minicpm3;
mod minimax;
mod minimax_m2;
mod minimax_m3;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod mllama;
mod modernbert;
mod modernbert_decoder;
mod mpnet;
mod mpt;
mod muse_glimmer;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod nomic_bert;
mod nomic_bert_moe;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen4_exp;
mod seed_oss;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod vaultgemma;
mod xglm;
mod xlm_roberta;
mod youtu;

use crate::family::Family;

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
    &minimax::FAMILY,
    &minimax_m2::FAMILY,
    &minimax_m3::FAMILY,
    &qwen4_exp::FAMILY,
    &afmoe::FAMILY,
    &arcee::FAMILY,
    &dots1::FAMILY,
    &ernie4_5_moe::FAMILY,
    &exaone::FAMILY,
    &exaone_moe::FAMILY,
    &glm4_moe_lite::FAMILY,
    &hy_v3::FAMILY,
    &lfm2_moe::FAMILY,
    &seed_oss::FAMILY,
    &solar_open::FAMILY,
    &youtu::FAMILY,
    &bamba::FAMILY,
    &granitemoehybrid::FAMILY,
    &mamba::FAMILY,
    &jamba::FAMILY,
    &kimi_linear::FAMILY,
    &olmo_hybrid::FAMILY,
    &mamba2::FAMILY,
    &nemotron_h::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5_moe::FAMILY,
    &cohere::FAMILY,
    &flex_olmo::FAMILY,
    &glm::FAMILY,
    &helium::FAMILY,
    &hunyuan::FAMILY,
    &hunyuan_moe::FAMILY,
    &jais2::FAMILY,
    &laguna::FAMILY,
    &minicpm3::FAMILY,
    &ministral3::FAMILY,
    &mistral4::FAMILY,
    &nemotron::FAMILY,
    &olmo::FAMILY,
    &vaultgemma::FAMILY,
    &distilbert::FAMILY,
    &eurobert::FAMILY,
    &gte::FAMILY,
    &jina_embeddings_v3::FAMILY,
    &nomic_bert::FAMILY,
    &gemma4::FAMILY,
    &embedding_gemma2::FAMILY,
    &codegen::FAMILY,
    &cohere2_moe::FAMILY,
    &gpt_bigcode::FAMILY,
    &gpt_neo::FAMILY,
    &gptj::FAMILY,
    &granite_swa::FAMILY,
    &lfm3::FAMILY,
    &opt::FAMILY,
    &persimmon::FAMILY,
    &apertus::FAMILY,
    &bitnet::FAMILY,
    &llama4::FAMILY,
    &mimo_v2_flash::FAMILY,
    &mllama::FAMILY,
    &modernbert_decoder::FAMILY,
    &nanochat::FAMILY,
    &phimoe::FAMILY,
    &bloom::FAMILY,
    &deepseek_v32::FAMILY,
    &deepseek_v4::FAMILY,
    &glm_moe_dsa::FAMILY,
    &falcon_h1::FAMILY,
    &gemma3n::FAMILY,
    &muse_glimmer::FAMILY,
    &deepseek::FAMILY,
    &mellum::FAMILY,
    &dbrx::FAMILY,
    &nomic_bert_moe::FAMILY,
    &mpt::FAMILY,
    &mpnet::FAMILY,
    &xglm::FAMILY,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/models.md");

    /// Returns the names as a cell of the page.
    fn cell(names: &[&str]) -> String {
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        if quoted.is_empty() { "–".to_owned() } else { quoted.join(", ") }
    }

    #[test]
    fn the_page_lists_all_families() {
        for family in Family::ALL {
            let aliases = family.gguf.also.iter().map(|alias| alias.architecture);
            let mut files: Vec<&str> = std::iter::once(family.gguf.architecture).chain(aliases).collect();
            files.retain(|name| Family::of_gguf(name).is_some());
            let row = format!("| {} | {} |\n", cell(family.model_types), cell(&files));
            assert_eq!(PAGE.matches(&row).count(), 1, "docs/models.md needs one row that ends with {row}");
        }
        let rows = PAGE.lines().filter(|line| line.matches('`').count() > 1 && line.starts_with("| ")).count();
        let missing = crate::unsupported::MISSING_FEATURES;
        assert_eq!(rows, Family::ALL.len() + missing.len() + 2, "rows and two headers");
        for (names, feature) in missing {
            let row = format!("| {} | {feature} |\n", cell(names));
            assert_eq!(PAGE.matches(&row).count(), 1, "docs/models.md needs one row that ends with {row}");
        }
    }
}
