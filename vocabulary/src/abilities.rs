//! What a model can do besides going on with a text, as far as its chat template tells.
//!
//! Templates are programs; here they are only looked through for words that no template without the ability has.

use crate::chat_templates::is_go;

/// Words of templates for models that mark what they think.
const THINKING: [&str; 10] = [
    "<think>",
    "<thinking>",
    "[THINK]",
    "<|START_THINKING|>",
    "<seed:think>",
    "<|channel|>analysis",
    "<|channel>thought",
    "enable_thinking",
    "reasoning_effort",
    ".Thinking",
];

/// Whether a chat template, Jinja or Go, has a place for tools.
pub fn offers_tools(template: &str) -> bool {
    template.contains("tools") || template.contains(".Tools")
}

/// Whether a Go template says how what is missing between two texts is asked for.
pub fn offers_insert(template: &str) -> bool {
    is_go(template) && template.contains(".Suffix")
}

/// Whether a chat template knows of thinking before an answer.
pub fn offers_thinking(template: &str) -> bool {
    THINKING.iter().any(|word| template.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_tell() {
        for (template, tools, thinking) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false, false),
            ("{% if tools %}{{ tools | tojson }}{% endif %}", true, false),
            ("{{ .Prompt }}{{ range .Tools }}{{ . }}{{ end }}", true, false),
            ("{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", false, true),
            ("{% if tools %}{% endif %}<|channel|>analysis<|message|>", true, true),
        ] {
            assert_eq!((offers_tools(template), offers_thinking(template)), (tools, thinking), "{template}");
        }
    }
}
