//! What a model can do besides going on with a text, as far as its chat template and its vocabulary tell.
//!
//! Templates are programs; here they are only looked through for words that no template without the ability has.

/// Words of templates for models that mark what they think.
const THINKING: [&str; 12] = [
    "<think>",
    "</think>",
    "<thinking>",
    "[THINK]",
    "<|begin_of_thought|>",
    "<|START_THINKING|>",
    "<seed:think>",
    "<|channel|>analysis",
    "<|channel>thought",
    "enable_thinking",
    "reasoning_effort",
    "reasoning_content",
];

/// The tokens around what comes before a gap, after it, and of the gap itself, as families of models have them: `Qwen` and
/// `CodeGemma`; `StarCoder` and `Granite`; `SantaCoder`; `Code Llama`; `DeepSeek`.
const INSERT: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// Whether a chat template, Jinja or Go, has a place for tools.
pub fn offers_tools(template: &str) -> bool {
    template.contains("tools") || template.contains(".Tools")
}

/// Whether a chat template knows of thinking before an answer.
pub fn offers_thinking(template: &str) -> bool {
    THINKING.iter().any(|word| template.contains(word))
}

/// Whether a vocabulary has the tokens for filling a gap; `has` says whether a token is in it.
pub fn can_insert(has: impl Fn(&str) -> bool) -> bool {
    INSERT.iter().any(|family| family.iter().all(|token| has(token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_vocabularies_tell() {
        for (template, tools, thinking) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false, false),
            ("{% if tools %}{{ tools | tojson }}{% endif %}", true, false),
            ("{{ .Prompt }}{{ range .Tools }}{{ . }}{{ end }}", true, false),
            ("{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", false, true),
            ("{% if tools %}{% endif %}<|channel|>analysis<|message|>", true, true),
        ] {
            assert_eq!((offers_tools(template), offers_thinking(template)), (tools, thinking), "{template}");
        }
        let vocabulary = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|fim_prefix|>"];
        assert!(can_insert(|token| vocabulary.contains(&token)));
        assert!(!can_insert(|token| vocabulary[1..].contains(&token)), "one of the three is missing");
    }
}
