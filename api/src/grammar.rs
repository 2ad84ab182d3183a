//! A grammar in place of a JSON schema:
//! `{"type": "grammar", "syntax": "regex" | "lark", "definition": "…"}`, the format that `OpenAI`
//! uses for custom tools.

use protocol::Format;
use serde_json::Value;

/// Parses a grammar document. Returns `None` if the document is not a grammar.
///
/// # Errors
/// Names the missing part or the unknown syntax.
pub(crate) fn format(document: &Value) -> Option<Result<Format, String>> {
    (document.get("type")? == "grammar").then(|| of(&document["syntax"], &document["definition"]))
}

/// Creates a format from the two parts of a grammar document.
///
/// # Errors
/// As for [`format`].
pub(crate) fn of(syntax: &Value, definition: &Value) -> Result<Format, String> {
    let Some(definition) = definition.as_str().map(str::to_owned) else {
        return Err("a grammar needs a `definition`, a text".to_owned());
    };
    match syntax.as_str() {
        Some("regex") => Ok(Format::Regex { pattern: definition }),
        Some("lark") => Ok(Format::Lark { grammar: definition }),
        _ => Err(format!("the `syntax` of a grammar is \"regex\" or \"lark\", not {syntax}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grammars_are_told_from_schemas() {
        let grammar = |syntax: Value| json!({"type": "grammar", "syntax": syntax, "definition": "a|b"});
        assert_eq!(format(&grammar(json!("regex"))), Some(Ok(Format::Regex { pattern: "a|b".to_owned() })));
        assert_eq!(format(&grammar(json!("lark"))), Some(Ok(Format::Lark { grammar: "a|b".to_owned() })));
        assert_eq!(format(&json!({"type": "object", "syntax": "regex"})), None);
        for bad in [grammar(json!("gbnf")), json!({"type": "grammar", "syntax": "regex"})] {
            assert!(format(&bad).expect("a grammar").is_err(), "{bad}");
        }
    }
}
