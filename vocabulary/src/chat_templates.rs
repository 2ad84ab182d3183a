//! Where chat templates are found: pairs of a name and a text, `default` for the one that needs no name.
//!
//! | source | place |
//! |---|---|
//! | folder | `chat_template.jinja`, which counts alone where it is there |
//! | folder | `chat_template` of `tokenizer_config.json`: a text, or a list of named ones |
//! | GGUF | `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for each of `tokenizer.chat_templates` |

use formats::Gguf;
use serde_json::Value;

/// The name of the template that needs none.
pub const DEFAULT: &str = "default";

/// Functions of Go's templates, of which none is a word of Jinja that may stand before a value.
const FUNCTIONS: [&str; 9] = ["printf", "print", "println", "json", "index", "slice", "len", "html", "js"];

/// A template under its name.
pub type Named = (String, String);

/// Whether a template is one of Go's, as Ollama has them: fields begin with a point, and blocks stand in double braces.
pub fn is_go(source: &str) -> bool {
    let mut actions = source.split("{{").skip(1).map(|action| action.trim_start_matches('-').trim_start());
    actions.any(|action| {
        let word = action.split(|c: char| c.is_whitespace() || "}-".contains(c)).next().unwrap_or_default();
        let follows = action.strip_prefix(word).unwrap_or_default();
        // Jinja calls with brackets, and has no word before a value.
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

/// The only template of a model.
pub fn single(text: String) -> Vec<Named> {
    vec![(DEFAULT.to_owned(), text)]
}

/// Those of a `tokenizer_config.json`.
pub fn of_config(config: &Value) -> Vec<Named> {
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

/// Those of a GGUF file.
pub fn of_gguf(gguf: &Gguf<'_>) -> Vec<Named> {
    let default = gguf.text("tokenizer.chat_template").map(|text| (DEFAULT.to_owned(), text.to_owned()));
    let names = gguf.array("tokenizer.chat_templates");
    let named = names.into_iter().flat_map(|names| names.iter().collect::<Vec<_>>()).filter_map(|name| {
        let name = name.as_str()?;
        Some((name.to_owned(), gguf.text(&format!("tokenizer.chat_template.{name}"))?.to_owned()))
    });
    // One that is named like the one without a name would take its place.
    let named = named.filter(|(name, _)| name != DEFAULT || default.is_none()).collect::<Vec<_>>();
    default.into_iter().chain(named).collect()
}

#[cfg(test)]
mod tests {
    use formats::gguf::{OwnedValue, write_header};
    use serde_json::json;

    use super::*;

    fn pair(name: &str, text: &str) -> Named {
        (name.to_owned(), text.to_owned())
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
