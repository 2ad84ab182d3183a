//! Special tokens for fill-in-the-middle: the model generates the text between two texts.
//!
//! Sources: the model cards of Qwen Coder, `CodeGemma`, Granite, `StarCoder`, `CodeLlama`,
//! `DeepSeek` Coder, GLM and Codestral.

/// The fill-in-the-middle tokens of a model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Token before the text that precedes the gap.
    pub prefix: &'static str,
    /// Token before the text that follows the gap.
    pub suffix: &'static str,
    /// Token after which the model generates the missing text; `None` if no token is needed after
    /// the last text.
    pub middle: Option<&'static str>,
}

const FAMILIES: &[Marks] = &[
    Marks { prefix: "<|fim_prefix|>", suffix: "<|fim_suffix|>", middle: Some("<|fim_middle|>") },
    Marks { prefix: "<fim_prefix>", suffix: "<fim_suffix>", middle: Some("<fim_middle>") },
    Marks { prefix: "<fim-prefix>", suffix: "<fim-suffix>", middle: Some("<fim-middle>") },
    Marks { prefix: "<｜fim▁begin｜>", suffix: "<｜fim▁hole｜>", middle: Some("<｜fim▁end｜>") },
    Marks { prefix: "▁<PRE>", suffix: "▁<SUF>", middle: Some("▁<MID>") },
    Marks { prefix: "<|code_prefix|>", suffix: "<|code_suffix|>", middle: Some("<|code_middle|>") },
    // Codestral expects the suffix first.
    Marks { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None },
];

/// Returns the tokens of the first family whose tokens are all in a vocabulary; `has` returns
/// whether a token is in it.
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
