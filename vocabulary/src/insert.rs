//! The tokens by which models are asked for what is missing between two texts.
//!
//! Sources: the model cards of Qwen Coder, `CodeGemma`, Granite, `StarCoder`, `CodeLlama`, `DeepSeek` Coder, GLM and Codestral.

/// The tokens of one family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Before what precedes the gap.
    pub prefix: &'static str,
    /// Before what follows it.
    pub suffix: &'static str,
    /// What asks for the missing text; nothing where the text that comes last does.
    pub middle: Option<&'static str>,
}

const FAMILIES: &[Marks] = &[
    Marks { prefix: "<|fim_prefix|>", suffix: "<|fim_suffix|>", middle: Some("<|fim_middle|>") },
    Marks { prefix: "<fim_prefix>", suffix: "<fim_suffix>", middle: Some("<fim_middle>") },
    Marks { prefix: "<fim-prefix>", suffix: "<fim-suffix>", middle: Some("<fim-middle>") },
    Marks { prefix: "<｜fim▁begin｜>", suffix: "<｜fim▁hole｜>", middle: Some("<｜fim▁end｜>") },
    Marks { prefix: "▁<PRE>", suffix: "▁<SUF>", middle: Some("▁<MID>") },
    Marks { prefix: "<|code_prefix|>", suffix: "<|code_suffix|>", middle: Some("<|code_middle|>") },
    // Codestral wants the suffix first.
    Marks { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None },
];

/// The tokens of the first family that a vocabulary has all of; `has` says whether a token is in it.
pub fn marks(has: &dyn Fn(&str) -> bool) -> Option<&'static Marks> {
    FAMILIES.iter().find(|marks| has(marks.prefix) && has(marks.suffix) && marks.middle.is_none_or(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_of_a_family_are_needed() {
        let vocabulary = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|fim_prefix|>"];
        let found = marks(&|token| vocabulary.contains(&token)).expect("they are all there");
        assert_eq!(found.middle, Some("<fim_middle>"));
        assert_eq!(marks(&|token| vocabulary[1..].contains(&token)), None, "one of the three is missing");
        assert!(marks(&|token| token.starts_with('[')).is_some(), "this one has two");
    }
}
