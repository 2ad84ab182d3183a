//! Chat templates: rendering of conversations to text.
//!
//! There are two kinds: [Jinja](jinja) as in Hugging Face transformers, and [Go's templates](go) as
//! in Ollama. The template's text determines its kind.

mod clock;
mod continuation;
mod conversation;
#[cfg(test)]
mod fixtures;
mod go;
mod jinja;
mod reshape;

use protocol::{Message, RenderRequest, TextPart, text_parts};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use vocabulary::chat_templates::{NamedTemplate, is_go};

use crate::{Error, MAX_TEXT};
use clock::Clock;
use go::GoTemplate;
use jinja::Jinja;

/// Maximum length of a template in a request, in bytes.
const MAX_TEMPLATE: usize = 1 << 20;

/// A model's chat template, which is parsed only when it is rendered. Parsing is as dangerous as
/// rendering, because it evaluates constant expressions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatTemplate {
    named: Vec<NamedTemplate>,
    /// `bos_token`, `eos_token` and similar variables.
    variables: Map<String, Value>,
}

impl ChatTemplate {
    /// Creates a single template. `variables` are the special tokens by role.
    pub fn new(source: &str, variables: Map<String, Value>) -> Self {
        Self::from_named(vec![("default".to_owned(), source.to_owned())], variables)
    }

    /// Creates a set of templates: `tool_use` is used if tools are given, else `default` or the
    /// first one.
    pub fn from_named(named: Vec<NamedTemplate>, variables: Map<String, Value>) -> Self {
        Self { named, variables }
    }

    /// Checks that all templates can be parsed.
    ///
    /// # Errors
    /// Why a template cannot be parsed.
    pub fn check(&self) -> Result<(), Error> {
        let (go, jinja): (Vec<_>, Vec<_>) = self.named.iter().cloned().partition(|(_, source)| is_go(source));
        go.iter().try_for_each(|(_, source)| GoTemplate::read(source).map(drop))?;
        Jinja::read(&jinja, Clock::at(None)).map(drop)
    }

    /// Returns the texts of all templates, joined; for the detection of dialects and abilities.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.named.iter().map(|(_, text)| text.as_str()).collect();
        texts.join("\n")
    }

    /// Renders a conversation with the model's special tokens; the request's own template takes
    /// precedence.
    ///
    /// # Errors
    /// The error that the template raised, or why it cannot be rendered.
    pub fn render(&self, request: &RenderRequest) -> Result<String, Error> {
        match &request.template {
            Some(own) if own.len() > MAX_TEMPLATE => {
                Err(Error::Template(format!("it has {} bytes, at most {MAX_TEMPLATE} are taken", own.len())))
            }
            Some(own) => Self::new(own, self.variables.clone()).render_own(request),
            None => self.render_own(request),
        }
    }

    /// Renders the conversation as it is. If the template refuses its shape, renders the same texts
    /// in a shape that strict templates accept; if that fails too, the first error is returned.
    fn render_own(&self, request: &RenderRequest) -> Result<String, Error> {
        self.render_shape(request).or_else(|error| {
            let reshaped = reshape::alternatives(&request.messages).into_iter();
            let rendered = reshaped.map(|messages| self.render_shape(&RenderRequest { messages, ..request.clone() }));
            rendered.flatten().next().ok_or(error)
        })
    }

    /// Renders messages in this shape. If the last message is the assistant's, the answer continues
    /// it.
    fn render_shape(&self, request: &RenderRequest) -> Result<String, Error> {
        let Some((begun, before)) = continuation::of(request, self) else { return self.render_whole(request) };
        let rendered = self.render_whole(&RenderRequest { messages: before.to_vec(), ..request.clone() })?;
        let source = self.chosen(request.tools.is_some()).map_or("", |(_, source)| source);
        Ok(continuation::appended(rendered, begun, source))
    }

    /// Whether the template in use is a Go template, which continues the last message itself.
    fn continues(&self, request: &RenderRequest) -> bool {
        self.chosen(request.tools.is_some()).is_none_or(|(_, source)| is_go(source))
    }

    fn render_whole(&self, request: &RenderRequest) -> Result<String, Error> {
        let has_tools =
            request.tools.as_ref().is_some_and(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let Some((name, source)) = self.chosen(has_tools) else { return Ok(String::new()) };
        let clock = Clock::at(request.now.as_deref());
        let messages = conversation::complete(&request.messages, source);
        if is_go(source) {
            let request = RenderRequest { messages, ..request.clone() };
            return GoTemplate::read(source)?.render(&request, &clock);
        }
        let mut context = self.variables.clone();
        let messages: Vec<Value> = messages.iter().map(|message| typed(message, request.typed_pictures)).collect();
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), if has_tools { json!(request.tools) } else { Value::Null });
        context.insert("documents".to_owned(), json!(request.documents));
        context.insert("add_generation_prompt".to_owned(), json!(request.add_generation_prompt));
        context.extend(request.variables.clone());
        Jinja::read(&self.named, clock)?.render(name, &context)
    }

    /// Returns the template for a conversation with tools, or without.
    fn chosen(&self, has_tools: bool) -> Option<&NamedTemplate> {
        let named = |wanted: &str| self.named.iter().find(|(name, _)| name == wanted);
        let for_tools = has_tools.then(|| named("tool_use")).flatten();
        for_tools.or_else(|| named("default")).or(self.named.first())
    }
}

/// Returns a message for templates. A content with marks of pictures becomes a list of parts.
fn typed(message: &Message, pictures: usize) -> Value {
    let mut value = json!(message);
    if pictures > 0 && message.content.contains(protocol::PICTURE_MARK) {
        let parts = text_parts(&message.content, pictures);
        let part = |part: &TextPart<'_>| match part {
            TextPart::Text(text) => json!({"type": "text", "text": text}),
            TextPart::Picture(_) => json!({"type": "image"}),
        };
        if parts.iter().any(|part| matches!(part, TextPart::Picture(_))) {
            value["content"] = parts.iter().map(part).collect();
        }
    }
    value
}

/// Returns the error message for a text that is too long.
fn explain_length() -> String {
    format!("its output exceeds {MAX_TEXT} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(template: Option<&str>) -> RenderRequest {
        let messages = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": \"é\"}"}}]},
            {"role": "tool", "content": "1"},
        ]);
        let messages = serde_json::from_value(messages).expect("messages");
        RenderRequest { messages, template: template.map(str::to_owned), ..RenderRequest::default() }
    }

    #[test]
    fn a_request_may_bring_its_own_template() {
        let variables = Map::from_iter([("bos_token".to_owned(), Value::from("<s>"))]);
        let template = ChatTemplate::new("{{ messages[0].content }}", variables);
        assert_eq!(template.render(&request(None)).expect("text"), "x");
        assert_eq!(template.render(&request(Some("{{ bos_token }}!"))).expect("text"), "<s>!");
        for (go, expect) in [
            ("{{ range $i, $m := .Messages }}{{ $i }}{{ $m.Role }} {{ end }}", "0user 1assistant 2tool "),
            ("{{- if .System }}x{{ end }}[{{ .Prompt }}]", "[x]"),
        ] {
            assert_eq!(template.render(&request(Some(go))).expect("text"), expect, "{go}");
        }
        for bad in ["{% if %}", "{{ if .Prompt }}"] {
            assert!(template.render(&request(Some(bad))).is_err(), "{bad}");
        }
        let long = "x".repeat(MAX_TEMPLATE + 1);
        assert!(template.render(&request(Some(&long))).expect_err("refused").to_string().contains("1048577 bytes"));
    }

    #[test]
    fn pictures_reach_the_template_as_parts() {
        let text = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
            {% for part in m.content %}<{{ part.type }}>{{ part.text }}{% endfor %}{% endif %}|{% endfor %}";
        let template = ChatTemplate::new(text, Map::new());
        let content = format!("What is {}?", protocol::picture_mark(0));
        let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": content}]);
        let messages = serde_json::from_value(messages).expect("messages");
        let request = RenderRequest { messages, typed_pictures: 1, ..RenderRequest::default() };
        assert_eq!(template.render(&request).expect("text"), "s|<text>What is <image><text>?|");
        let request = RenderRequest { typed_pictures: 0, ..request };
        assert_eq!(template.render(&request).expect("text"), format!("s|{content}|"));
    }

    #[test]
    fn calls_reach_the_template_as_objects() {
        let text = "{{ messages[1].tool_calls[0].function.arguments.a }} {{ messages[2].name }} {{ messages[2].tool_call_id }}";
        let template = ChatTemplate::new(text, Map::new());
        assert_eq!(template.render(&request(None)).expect("text"), "é f call00001");
        let go =
            "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ .ToolName }}{{ end }}";
        assert_eq!(template.render(&request(Some(go))).expect("text"), "{\"a\":\"é\"}f");
    }
}
