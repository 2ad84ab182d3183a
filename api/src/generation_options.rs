//! The request to a model, independent of the API that it came by.

use protocol::{Format, GenerateRequest, Message, Prompt, RenderRequest, ToolChoice};
use serde_json::{Map, Value};

use crate::ollama::{KeepAliveSpec, Options, Think};

/// A conversation that the model continues.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatInput {
    /// Messages in order; a system prompt is the first.
    pub messages: Vec<Message>,
    /// Tool definitions in the form that templates expect: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// Whether and how much to think, if the request sets it.
    pub think: Option<Think>,
    /// True if a model that cannot think answers without thinking. If false, the request is
    /// refused.
    pub thinking_is_optional: bool,
    /// Types of the tools that the request offers but Lode does not support. The model does not see
    /// them.
    pub omitted_tools: Vec<String>,
    /// A template that replaces the template of the model.
    pub template: Option<String>,
    /// Further template variables; they override the variables that `think` sets.
    pub variables: Map<String, Value>,
    /// Documents to base the answer on, in the form that templates expect.
    pub documents: Option<Value>,
    /// Files of the pictures whose [marks](protocol::picture_mark) are in the messages, as base64.
    pub pictures: Vec<String>,
}

impl ChatInput {
    /// Returns the request to render the prompt. `now` is the current time in RFC 3339 format.
    pub fn render(self, now: String) -> RenderRequest {
        let mut variables = self.think.as_ref().map(variables).unwrap_or_default();
        // Templates read one of the two names. If the request sets only one, both get its value.
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
            typed_pictures: 0,
        }
    }

    /// Returns the conversation as a prompt.
    pub fn prompt(self, now: String) -> Prompt {
        Prompt::Chat(Box::new(self.render(now)))
    }
}

/// Returns the thinking setting under every name that templates read; each template reads one of
/// them.
fn variables(think: &Think) -> Map<String, Value> {
    let mut variables = Map::new();
    variables.insert("enable_thinking".to_owned(), think.is_wanted().into());
    variables.insert("thinking".to_owned(), think.is_wanted().into());
    if let Think::Level(level) = think {
        variables.insert("reasoning_effort".to_owned(), level.clone().into());
    }
    variables
}

/// Generation options: everything in a request except the prompt or conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationOptions {
    /// Options that the request sets. Missing ones come from the model.
    pub options: Options,
    /// Defaults for options that neither the request nor the model sets.
    pub fallback: Options,
    /// Names of options in the request that Lode does not know.
    pub unknown_options: Vec<String>,
    /// See [`GenerateRequest::top_logprobs`].
    pub top_logprobs: Option<u32>,
    /// See [`GenerateRequest::logit_bias`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`GenerateRequest::format`].
    pub format: Option<Format>,
    /// See [`GenerateRequest::tool_choice`].
    pub tool_choice: ToolChoice,
    /// True if only the first tool call is reported.
    pub one_tool_call: bool,
    /// True if a prompt that does not fit the context is refused. If false, its beginning is
    /// dropped.
    pub refuse_long_prompts: bool,
    /// True if the oldest tokens are dropped when the context is full. If false, the generation
    /// ends.
    pub shift: bool,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
}

impl GenerationOptions {
    /// Sets the fields of the runner's request that do not come from options.
    pub fn apply(&self, request: &mut GenerateRequest) {
        request.top_logprobs = self.top_logprobs;
        request.logit_bias.clone_from(&self.logit_bias);
        request.format.clone_from(&self.format);
        request.tool_choice = self.tool_choice.clone();
        request.truncate = !self.refuse_long_prompts;
        request.shift = self.shift;
    }

    /// Returns the defaults of `OpenAI`'s and Anthropic's APIs, which differ from Ollama's.
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
            let render = ChatInput { think: think.clone(), ..ChatInput::default() }.render(String::new());
            assert_eq!(Value::Object(render.variables), expect, "{think:?}");
            assert_eq!(render.tools, None, "no tools are not an empty list of tools");
        }
    }
}
