//! What a model is to answer to: the request's messages after the model's own.

use protocol::{Message, Prompt, RenderRequest};
use serde_json::{Map, Value};

use super::Call;
use crate::error::Failed;
use library::Opening;

/// Whether, or how much, a model is to think before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Think {
    /// No.
    Off,
    /// As it likes.
    On,
    /// So much: `low`, `medium`, `high`, ….
    Level(String),
}

/// A conversation that is to go on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// As templates want them: a list of `{"type": "function", "function": {…}}`.
    pub(crate) tools: Vec<Value>,
    /// Where the request says.
    pub(crate) think: Option<Think>,
    /// A template instead of the model's.
    pub(crate) template: Option<String>,
}

impl Conversation {
    /// What the runner is to render.
    pub(crate) fn render(self) -> RenderRequest {
        RenderRequest {
            messages: self.messages,
            tools: (!self.tools.is_empty()).then_some(Value::Array(self.tools)),
            add_generation_prompt: true,
            template: self.template,
            variables: self.think.as_ref().map(variables).unwrap_or_default(),
        }
    }

    /// The same as a prompt.
    pub(crate) fn prompt(self) -> Prompt {
        Prompt::Chat(self.render())
    }
}

/// Thinking under every name that templates look for; each looks at its own.
fn variables(think: &Think) -> Map<String, Value> {
    let on = *think != Think::Off;
    let mut variables = Map::new();
    variables.insert("enable_thinking".to_owned(), on.into());
    variables.insert("thinking".to_owned(), on.into());
    if let Think::Level(level) = think {
        variables.insert("reasoning_effort".to_owned(), level.clone().into());
    }
    variables
}

impl Call {
    /// The model's own messages and system prompt before those of the request. A system prompt of the request replaces
    /// the model's.
    ///
    /// # Errors
    /// The model's own cannot be read.
    pub(crate) fn conversation(&self, messages: Vec<Message>) -> Result<Vec<Message>, Failed> {
        let brings_system = messages.first().is_some_and(|message| message.role == "system");
        let Opening { system, messages: own } = self.own_opening()?;
        let system = system.filter(|_| !brings_system).map(|text| message("system", text));
        Ok(system.into_iter().chain(own).chain(messages).collect())
    }

    /// What precedes a single prompt: the system prompt of the request, else the model's, then the model's messages.
    ///
    /// # Errors
    /// The model's own cannot be read.
    pub(crate) fn opening(&self, system: Option<String>) -> Result<Vec<Message>, Failed> {
        let Opening { system: own, messages } = self.own_opening()?;
        let system = system.filter(|text| !text.is_empty()).or(own).map(|text| message("system", text));
        Ok(system.into_iter().chain(messages).collect())
    }

    fn own_opening(&self) -> Result<Opening, Failed> {
        self.own.opening.clone().map_err(|reason| Failed::from(anyhow::anyhow!(reason)))
    }
}

/// A message that is only text.
pub(crate) fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content, rest: Map::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thinking_has_all_its_names_in_templates() {
        for (think, expect) in [
            (None, json!({})),
            (Some(Think::Off), json!({"enable_thinking": false, "thinking": false})),
            (Some(Think::On), json!({"enable_thinking": true, "thinking": true})),
            (
                Some(Think::Level("low".to_owned())),
                json!({"enable_thinking": true, "thinking": true, "reasoning_effort": "low"}),
            ),
        ] {
            let render = Conversation { think: think.clone(), ..Conversation::default() }.render();
            assert_eq!(Value::Object(render.variables), expect, "{think:?}");
            assert_eq!(render.tools, None, "no tools are not an empty list of tools");
        }
    }
}
