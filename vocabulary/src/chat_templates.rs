//! Sources of chat templates. A template is a pair of a name and a text; the name `default` stands
//! for the template without a name.
//!
//! - Folder: `chat_template.jinja`, else `chat_template` of `chat_template.json`, else
//!   `chat_template` of `tokenizer_config.json`, which is a text or a list of named texts. In
//!   addition, `additional_chat_templates/NAME.jinja`.
//! - GGUF: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for each name in
//!   `tokenizer.chat_templates`.

use formats::Gguf;
use serde_json::Value;

/// Name of the template that has no name of its own.
pub const DEFAULT: &str = "default";

/// Functions of Go templates. In Jinja, none of these words can precede a value.
const FUNCTIONS: [&str; 9] = ["printf", "print", "println", "json", "index", "slice", "len", "html", "js"];

/// Name and text of a template.
pub type NamedTemplate = (String, String);

/// Whether a template is a Go template as Ollama uses them: fields begin with a dot, and blocks are
/// in double braces.
///
/// # Examples
///
/// ```
/// use lode_vocabulary::chat_templates::is_go;
///
/// assert!(is_go("{{ range .Messages }}{{ .Content }}{{ end }}"));
/// assert!(!is_go("{% for message in messages %}{{ message.content }}{% endfor %}"));
/// ```
pub fn is_go(source: &str) -> bool {
    let mut actions = source.split("{{").skip(1).map(|action| action.trim_start_matches('-').trim_start());
    actions.any(|action| {
        let word = action.split(|c: char| c.is_whitespace() || "}-".contains(c)).next().unwrap_or_default();
        let follows = action.strip_prefix(word).unwrap_or_default();
        // Jinja calls functions with parentheses and never puts a word directly before a value.
        let calls = FUNCTIONS.contains(&word)
            && follows.starts_with(char::is_whitespace)
            && follows.trim_start().starts_with(['.', '$', '"']);
        action.starts_with(['.', '$', '`'])
            || action.starts_with("/*")
            || calls
            || action.starts_with("template \"")
            || matches!(word, "range" | "end" | "if" | "else" | "block" | "define" | "with")
    })
}

/// Returns the list of templates of a model with a single template.
pub fn single(text: String) -> Vec<NamedTemplate> {
    vec![(DEFAULT.to_owned(), text)]
}

/// Returns the templates of a `tokenizer_config.json`.
pub fn of_config(config: &Value) -> Vec<NamedTemplate> {
    match config.get("chat_template") {
        Some(Value::String(text)) => single(text.clone()),
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|entry| {
                let text = |key: &str| Some(entry.get(key)?.as_str()?.to_owned());
                Some((text("name")?, text("template")?))
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Collects the templates of a folder, from its documents in any order.
#[derive(Debug, Default)]
pub struct OfFolder {
    /// Templates of `chat_template.jinja`. This and the next two fields are in descending priority;
    /// `additional` supplements them.
    jinja: Vec<NamedTemplate>,
    json: Vec<NamedTemplate>,
    config: Vec<NamedTemplate>,
    additional: Vec<NamedTemplate>,
}

impl OfFolder {
    /// Whether a document of this name can contain templates.
    pub fn reads(name: &str) -> bool {
        matches!(name, "chat_template.jinja" | "chat_template.json" | "tokenizer_config.json")
            || additional(name).is_some()
    }

    /// Adds a document.
    pub fn take(&mut self, name: &str, text: &str) {
        // A document that is not JSON is refused by the load, which reports the error.
        let json = || serde_json::from_slice(&formats::json::tolerant(text.as_bytes())).unwrap_or_default();
        match name {
            "chat_template.jinja" => self.jinja = single(text.to_owned()),
            "chat_template.json" => self.json = of_config(&json()),
            "tokenizer_config.json" => self.config = of_config(&json()),
            _ => self.additional.extend(additional(name).map(|name| (name.to_owned(), text.to_owned()))),
        }
    }

    /// Returns all templates, each name once.
    pub fn templates(self) -> Vec<NamedTemplate> {
        let Self { jinja, json, config, mut additional } = self;
        let mut all = [jinja, json, config].into_iter().find(|templates| !templates.is_empty()).unwrap_or_default();
        additional.sort();
        additional.retain(|(name, _)| !all.iter().any(|(own, _)| own == name));
        all.extend(additional);
        all
    }
}

/// Returns the name of a template that has a file of its own.
fn additional(document: &str) -> Option<&str> {
    document.strip_prefix("additional_chat_templates/")?.strip_suffix(".jinja").filter(|name| !name.contains('/'))
}

/// Returns the templates of a GGUF file.
pub fn of_gguf(gguf: &Gguf<'_>) -> Vec<NamedTemplate> {
    let default = gguf.text("tokenizer.chat_template").map(|text| (DEFAULT.to_owned(), text.to_owned()));
    let names = gguf.array("tokenizer.chat_templates");
    let named = names.into_iter().flat_map(|names| names.iter().collect::<Vec<_>>()).filter_map(|name| {
        let name = name.as_str()?;
        Some((name.to_owned(), gguf.text(&format!("tokenizer.chat_template.{name}"))?.to_owned()))
    });
    // A named template called `default` would replace the unnamed one.
    let named = named.filter(|(name, _)| name != DEFAULT || default.is_none()).collect::<Vec<_>>();
    default.into_iter().chain(named).collect()
}

#[cfg(test)]
mod tests {
    use formats::gguf::{OwnedValue, write_header};
    use serde_json::json;

    use super::*;

    fn pair(name: &str, text: &str) -> NamedTemplate {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn folders_have_several_places() {
        let of = |documents: &[(&str, &str)]| {
            let mut templates = OfFolder::default();
            for (name, text) in documents.iter().filter(|(name, _)| OfFolder::reads(name)) {
                templates.take(name, text);
            }
            templates.templates()
        };
        let (config, json) = (
            ("tokenizer_config.json", r#"{"chat_template": "C"}"#),
            ("chat_template.json", r#"{"chat_template": "J"}"#),
        );
        let tools = ("additional_chat_templates/tool_use.jinja", "T");
        assert_eq!(of(&[config]), [pair("default", "C")]);
        assert_eq!(of(&[tools, config, json]), [pair("default", "J"), pair("tool_use", "T")]);
        assert_eq!(
            of(&[json, config, ("chat_template.jinja", "X"), tools]),
            [pair("default", "X"), pair("tool_use", "T")]
        );
        assert_eq!(of(&[("other.jinja", "O")]), []);
    }

    #[test]
    fn go_is_told_from_jinja() {
        for go in [
            "{{ .Prompt }}",
            "{{- if .System }}x{{ end }}",
            "{{ range $i, $_ := .Messages }}{{ end }}",
            "{{ $last }}",
            "{{- printf \"%s\" .Prompt }}",
            "{{/* n */}}x",
            "{{ json .Messages }}",
        ] {
            assert!(is_go(go), "{go}");
        }
        for jinja in [
            "{{ messages }}",
            "{% if a %}{{ range(3) }}{% endif %}",
            "{{- if_so }}",
            "{{ json (x) }}{{ len.x }}",
            "{{ 'x' }} {{ (a).b }}",
            "text",
            "",
        ] {
            assert!(!is_go(jinja), "{jinja}");
        }
    }

    #[test]
    fn configs_have_one_or_several() {
        assert_eq!(of_config(&json!({"chat_template": "t"})), [pair("default", "t")]);
        let named =
            json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}, 7]});
        assert_eq!(of_config(&named), [pair("tool_use", "t"), pair("default", "d")]);
        assert!(of_config(&json!({"chat_template": null})).is_empty());
    }

    #[test]
    fn files_name_the_others() {
        let keys = [
            ("tokenizer.chat_template".to_owned(), OwnedValue::from("d")),
            ("tokenizer.chat_template.tool_use".to_owned(), "t".into()),
            ("tokenizer.chat_templates".to_owned(), OwnedValue::texts(["tool_use", "absent"])),
        ];
        let header = write_header(&keys, &[]).expect("a header").bytes;
        let gguf = Gguf::parse(&header).expect("it is read");
        assert_eq!(of_gguf(&gguf), [pair("default", "d"), pair("tool_use", "t")]);
    }
}
