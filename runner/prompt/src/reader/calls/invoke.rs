//! Calls as `<invoke name="NAME">` with `<parameter name="KEY">VALUE</parameter>`, as in `MiniMax`
//! and `DeepSeek` V3.2.

use serde_json::Map;

use super::{Call, Tools, is_name};

/// Parses calls whose tags have `prefix` before their names. Values are plain text, unless the
/// tool's schema or the tag (`string="false"` means JSON) specifies otherwise.
pub(super) fn read(body: &str, prefix: &str, tools: &Tools) -> Option<Vec<Call>> {
    let (invoke, parameter) = (format!("<{prefix}invoke name="), format!("<{prefix}parameter name="));
    let close = format!("</{prefix}parameter>");
    let mut calls = Vec::new();
    for call in body.split(&invoke).skip(1) {
        let (name, rest) = named(call)?;
        is_name(name).then_some(())?;
        let mut arguments = Map::new();
        for part in rest.split(&parameter).skip(1) {
            let (key, value) = named(part)?;
            let (value, _) = value.rsplit_once(&close).unwrap_or((value, ""));
            let tag = part.split_once('>').map_or("", |(tag, _)| tag);
            let json = || serde_json::from_str(value).ok();
            let argument = match (tag.contains("string=\"true\""), tag.contains("string=\"false\"")) {
                (true, _) => value.into(),
                (_, true) => json().unwrap_or_else(|| tools.argument(name, key, value)),
                _ => tools.argument(name, key, value),
            };
            arguments.insert(key.to_owned(), argument);
        }
        calls.push(Call { name: name.to_owned(), arguments });
    }
    Some(calls)
}

/// Returns the name between quotes, and the text after the tag.
fn named(text: &str) -> Option<(&str, &str)> {
    let (tag, rest) = text.split_once('>')?;
    let (name, _) = tag.strip_prefix('"')?.split_once('"')?;
    Some((name, rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tag_says_whether_a_value_is_text() {
        let body = "<invoke name=\"f\"><parameter name=\"a\" string=\"true\">[1]</parameter>\
                    <parameter name=\"b\" string=\"false\">5</parameter><parameter name=\"c\">5</parameter></invoke>";
        let calls = read(body, "", &Tools::default()).expect("a call");
        assert_eq!(json!(calls[0].arguments), json!({"a": "[1]", "b": 5, "c": "5"}));
    }
}
