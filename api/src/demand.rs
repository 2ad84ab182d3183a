//! What a request asks of a model, whichever API it came by.

use protocol::{Format, GenerateRequest, Message, Prompt, RenderRequest, ToolChoice};
use serde_json::{Map, Value};

use crate::ollama::{KeepAliveSpec, Options, Think};

/// A conversation that is to go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialogue {
    /// In order; a system prompt is the first.
    pub messages: Vec<Message>,
    /// As templates want them: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// Where the request says.
    pub think: Option<Think>,
    /// True if a model that cannot think answers without; else the request is refused.
    pub thinking_is_optional: bool,
    /// Types of tools that the request offers and that do not exist here: the model is not offered them.
    pub omitted_tools: Vec<String>,
    /// A template instead of the model's.
    pub template: Option<String>,
    /// Further variables of the template; they count more than what `think` sets.
    pub variables: Map<String, Value>,
    /// What the answer is to be drawn from, as templates want it.
    pub documents: Option<Value>,
}

impl Dialogue {
    /// What a runner is to render; `now` is the time, as RFC 3339 writes it.
    pub fn render(self, now: String) -> RenderRequest {
        let mut variables = self.think.as_ref().map(variables).unwrap_or_default();
        // Templates ask for the one or the other; who says one of them means both.
        for (said, meant) in [("enable_thinking", "thinking"), ("thinking", "enable_thinking")] {
            if let (Some(value), false) = (self.variables.get(said), self.variables.contains_key(meant))
                && let Some(own) = variables.get_mut(meant)
            {
                own.clone_from(value);
            }
        }
        variables.extend(self.variables);
        RenderRequest {
            messages: self.messages,
            tools: (!self.tools.is_empty()).then_some(Value::Array(self.tools)),
            add_generation_prompt: true,
            continue_final_message: true,
            template: self.template,
            variables,
            documents: self.documents,
            suffix: None,
            now: Some(now),
        }
    }

    /// The same as a prompt.
    pub fn prompt(self, now: String) -> Prompt {
        Prompt::Chat(Box::new(self.render(now)))
    }
}

/// Thinking under every name that templates look for; each looks at its own.
fn variables(think: &Think) -> Map<String, Value> {
    let mut variables = Map::new();
    variables.insert("enable_thinking".to_owned(), think.is_wanted().into());
    variables.insert("thinking".to_owned(), think.is_wanted().into());
    if let Think::Level(level) = think {
        variables.insert("reasoning_effort".to_owned(), level.clone().into());
    }
    variables
}

/// How to generate: everything of a request but what to go on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// Options that the request sets; what it leaves open is the model's choice.
    pub options: Options,
    /// What holds where neither the request nor its model says.
    pub fallback: Options,
    /// Options of the request that nobody knows.
    pub unknown_options: Vec<String>,
    /// See [`GenerateRequest::top_logprobs`].
    pub top_logprobs: Option<u32>,
    /// See [`GenerateRequest::logit_bias`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`GenerateRequest::format`].
    pub format: Option<Format>,
    /// See [`GenerateRequest::tool_choice`].
    pub tool_choice: ToolChoice,
    /// Whether only the first call of a tool is told.
    pub one_tool_call: bool,
    /// Whether a prompt that does not fit is refused; else its beginning is dropped.
    pub refuse_long_prompts: bool,
    /// Whether the oldest tokens go when the context is full; else the generation ends.
    pub shift: bool,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
}

impl Demand {
    /// Puts into a request what is not an option.
    pub fn apply(&self, request: &mut GenerateRequest) {
        request.top_logprobs = self.top_logprobs;
        request.logit_bias.clone_from(&self.logit_bias);
        request.format.clone_from(&self.format);
        request.tool_choice = self.tool_choice.clone();
        request.truncate = !self.refuse_long_prompts;
        request.shift = self.shift;
    }

    /// Nothing in particular, in the APIs of `OpenAI` and Anthropic: their defaults differ from Ollama's.
    pub fn of_openai() -> Self {
        let fallback = Options { temperature: Some(1.0), top_p: Some(1.0), ..Options::default() };
        Self { fallback, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thinking_has_all_its_names_in_templates() {
        for (think, expect) in [
            (None, json!({})),
            (Some(Think::Flag(false)), json!({"enable_thinking": false, "thinking": false})),
            (Some(Think::Flag(true)), json!({"enable_thinking": true, "thinking": true})),
            (
                Some(Think::Level("low".to_owned())),
                json!({"enable_thinking": true, "thinking": true, "reasoning_effort": "low"}),
            ),
        ] {
            let render = Dialogue { think: think.clone(), ..Dialogue::default() }.render(String::new());
            assert_eq!(Value::Object(render.variables), expect, "{think:?}");
            assert_eq!(render.tools, None, "no tools are not an empty list of tools");
        }
    }
}
