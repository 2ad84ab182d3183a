//! Abilities of a model besides text completion, as its chat template reveals them.
//!
//! Templates are programs; here they are only searched for words that no template without the
//! ability contains.

use crate::chat_templates::is_go;

/// Words in templates of models that mark their thinking.
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

/// Whether a Go template supports fill-in-the-middle requests.
pub fn offers_insert(template: &str) -> bool {
    is_go(template) && template.contains(".Suffix")
}

/// Whether a chat template supports thinking before an answer.
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
