//! Chat templates: Jinja as Hugging Face transformers renders it.
//!
//! `trim_blocks` and `lstrip_blocks` on, loop controls, a `generation` block that renders as its content,
//! `raise_exception`, `strftime_now`, Python's string methods, and a `tojson` that keeps the order of keys and escapes
//! neither HTML nor non-ASCII.

mod conversation;

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use protocol::RenderRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use crate::{Error, MAX_TEXT};

/// What a template may recurse before it is stopped.
const RECURSION_LIMIT: usize = 100;
/// How much a template may do before it is stopped; the largest published ones need a fraction per message.
const FUEL: u64 = 10_000_000;

/// The longest template that a request may bring, in bytes.
const MAX_TEMPLATE: usize = 1 << 20;

/// How far `tojson` may indent.
const MAX_INDENT: usize = 16;

/// A model's chat template: data, until it is read to be rendered. Reading it is as dangerous as rendering it, because what
/// is constant is computed then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Names and texts.
    named: Vec<(String, String)>,
    /// `bos_token`, `eos_token` and the like.
    variables: Map<String, serde_json::Value>,
}

impl ChatTemplate {
    /// A single template. `variables` are the special tokens by their role.
    pub fn new(source: &str, variables: Map<String, serde_json::Value>) -> Self {
        Self::from_named(vec![("default".to_owned(), source.to_owned())], variables)
    }

    /// Several templates: `tool_use` is taken when tools are given, else `default` or the first.
    pub fn from_named(named: Vec<(String, String)>, variables: Map<String, serde_json::Value>) -> Self {
        Self { named, variables }
    }

    /// Whether all of them can be read.
    ///
    /// # Errors
    /// Why one cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.compiled().map(drop)
    }

    fn compiled(&self) -> Result<Environment<'static>, Error> {
        if let Some((_, go)) = self.named.iter().find(|(_, source)| is_go(source)) {
            let shown: String = go.chars().take(40).collect();
            let reason = format!(
                "`{shown}…` is a Go template; only Jinja templates can be rendered, remove TEMPLATE to use the model's own"
            );
            return Err(Error::Template(reason));
        }
        let mut environment = environment();
        for (name, source) in &self.named {
            let source = without_generation_blocks(source);
            environment.add_template_owned(name.clone(), source).map_err(|e| Error::Template(explain(&e)))?;
        }
        Ok(environment)
    }

    /// The texts of all templates, one after the other: what a dialect and abilities are read off.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.named.iter().map(|(_, text)| text.as_str()).collect();
        texts.join("\n")
    }

    /// Renders a conversation; by the request's own template where it has one, with the model's special tokens.
    pub fn render(&self, request: &RenderRequest) -> Result<String, Error> {
        match &request.template {
            Some(own) if own.len() > MAX_TEMPLATE => {
                Err(Error::Template(format!("it has {} bytes, at most {MAX_TEMPLATE} are taken", own.len())))
            }
            Some(own) => Self::new(own, self.variables.clone()).render_own(request),
            None => self.render_own(request),
        }
    }

    fn render_own(&self, request: &RenderRequest) -> Result<String, Error> {
        let has_tools =
            request.tools.as_ref().is_some_and(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let wanted = if has_tools { "tool_use" } else { "default" };
        let has = |name: &str| self.named.iter().any(|(named, _)| named == name);
        let name = if has(wanted) {
            wanted
        } else if has("default") {
            "default"
        } else {
            self.named.first().map_or("default", |(name, _)| name.as_str())
        };
        let environment = self.compiled()?;
        let template = environment.get_template(name).map_err(|e| Error::Template(explain(&e)))?;
        let mut context = self.variables.clone();
        let source = self.named.iter().find(|(named, _)| named == name).map_or("", |(_, text)| text.as_str());
        context.insert("messages".to_owned(), json!(conversation::complete(&request.messages, source)));
        context.insert("tools".to_owned(), if has_tools { json!(request.tools) } else { json!(null) });
        context.insert("documents".to_owned(), json!(null));
        context.insert("add_generation_prompt".to_owned(), json!(request.add_generation_prompt));
        context.extend(request.variables.clone());
        let mut text = Bounded(Vec::new());
        template
            .render_captured_to(Value::from_serialize(&context), &mut text)
            .map_err(|e| Error::Template(explain(&e)))?;
        String::from_utf8(text.0).map_err(|_| Error::Template("what it gives is not text".to_owned()))
    }
}

/// A text that a template may make no longer than [`MAX_TEXT`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            return Err(io::Error::other(format!("it makes a text of more than {MAX_TEXT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a template is one of Go's: fields begin with a point, and blocks stand in double braces.
fn is_go(source: &str) -> bool {
    let mut actions = source.split("{{").skip(1).map(|action| action.trim_start_matches('-').trim_start());
    actions.any(|action| {
        let word = action.split(|c: char| c.is_whitespace() || "}-".contains(c)).next().unwrap_or_default();
        action.starts_with(['.', '$']) || (matches!(word, "range" | "end" | "if" | "else" | "block"))
    })
}

/// The message with its cause: what a template raised is in the cause.
fn explain(error: &minijinja::Error) -> String {
    if let Some(failure) = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure) {
        return failure.to_string();
    }
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        text = format!("{text} (line {line})");
    }
    text
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
    environment
}

/// Python's `json.dumps` with `ensure_ascii=False`: a space after `:` and `,`, or as many per level as `indent` says.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn to_json(value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|width| width > MAX_INDENT) {
        return Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson indents by {MAX_INDENT} at most"),
        ));
    }
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let json = serde_json::to_value(&value).map_err(failed)?;
    let mut text = String::new();
    write_json(&json, indent, 0, &mut text);
    Ok(Value::from_safe_string(text))
}

fn write_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let items: Vec<(Option<&String>, &serde_json::Value)> = match value {
        serde_json::Value::Array(items) => items.iter().map(|item| (None, item)).collect(),
        serde_json::Value::Object(map) => map.iter().map(|(key, item)| (Some(key), item)).collect(),
        scalar => return out.push_str(&scalar.to_string()),
    };
    let (open, close) = if value.is_array() { ('[', ']') } else { ('{', '}') };
    let line = |depth: usize, out: &mut String| {
        if let Some(width) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(width * depth));
        }
    };
    out.push(open);
    for (position, (key, item)) in items.iter().enumerate() {
        if position > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        line(depth + 1, out);
        if let Some(key) = key {
            out.push_str(&serde_json::Value::from(key.as_str()).to_string());
            out.push_str(": ");
        }
        write_json(item, indent, depth + 1, out);
    }
    if !items.is_empty() {
        line(depth, out);
    }
    out.push(close);
}

/// `{% generation %}` marks the assistant's part for training; here it is its content, in a block that always renders.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag, after) = (&rest[..start], &rest[start..start + length + 2], &rest[start + length + 2..]);
        out.push_str(before);
        match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

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
        let variables = Map::from_iter([("bos_token".to_owned(), Json::from("<s>"))]);
        let template = ChatTemplate::new("{{ messages[0].content }}", variables);
        assert_eq!(template.render(&request(None)).expect("text"), "x");
        assert_eq!(template.render(&request(Some("{{ bos_token }}!"))).expect("text"), "<s>!");
        for go in
            ["{{ .Prompt }}", "{{- if .System }}x{{ end }}", "{{ range $i, $_ := .Messages }}{{ end }}", "{{ $last }}"]
        {
            let error = template.render(&request(Some(go))).expect_err("refused").to_string();
            assert!(error.contains("Go template"), "{go}: {error}");
        }
        assert!(template.render(&request(Some("{% if %}"))).is_err());
        let long = "x".repeat(MAX_TEMPLATE + 1);
        assert!(template.render(&request(Some(&long))).expect_err("refused").to_string().contains("1048577 bytes"));
    }

    #[test]
    fn calls_reach_the_template_as_objects() {
        let text = "{{ messages[1].tool_calls[0].function.arguments.a }} {{ messages[2].name }} {{ messages[2].tool_call_id }}";
        let template = ChatTemplate::new(text, Map::new());
        assert_eq!(template.render(&request(None)).expect("text"), "é f call00001");
    }
}
