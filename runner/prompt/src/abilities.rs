//! What a model can be asked for, read off its chat templates and its vocabulary.

use crate::insert::supports_insert;
use crate::reader::Dialect;

/// What a model can do beside text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own")]
pub struct Abilities {
    /// Its template offers tools.
    pub tools: bool,
    /// It thinks before it answers, and what it thinks can be told apart.
    pub thinking: bool,
    /// How much it thinks can be chosen: low, medium, high.
    pub thinking_levels: bool,
    /// It can say what is missing between two texts.
    pub insert: bool,
}

impl Abilities {
    /// Of a model whose chat templates (all of them, one after the other) have this text, and whose vocabulary has the
    /// tokens that `has_token` says.
    pub fn of(template: &str, has_token: &dyn Fn(&str) -> bool) -> Self {
        let dialect = Dialect::detect(template, has_token);
        Self {
            tools: dialect.calls_tools() && template.contains("tools"),
            thinking: dialect.thinks(),
            thinking_levels: template.contains("reasoning_effort"),
            insert: supports_insert(has_token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_and_tokens_tell_abilities() {
        let none = |_: &str| false;
        assert_eq!(Abilities::of("", &none), Abilities::default());
        let qwen = Abilities::of("{% if tools %} <tool_call> {% if enable_thinking %}<think>", &none);
        assert_eq!(qwen, Abilities { tools: true, thinking: true, ..Abilities::default() });
        let oss = Abilities::of("{{ reasoning_effort }} <|channel|>analysis<|message|>", &none);
        assert_eq!(oss, Abilities { thinking: true, thinking_levels: true, ..Abilities::default() });
        let coder = Abilities::of("", &|token| token.contains("fim_"));
        assert_eq!(coder, Abilities { insert: true, ..Abilities::default() });
    }
}
