//! Changes to a template's source for features that the engine handles differently.

/// Prepares a template for the engine. Line breaks become `\n`. `{% generation %}`, which marks the
/// assistant's part for training, becomes a block that always renders. A subscript with the name of
/// a method becomes an attribute, which is the method if there is no such key.
pub(super) fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%").into_iter().chain(rest.find("{{")).chain(rest.find("{#")).min() {
        let (text, tag) = rest.split_at(start);
        out.push_str(text);
        let length = end(tag);
        let (tag, after) = tag.split_at(length);
        out.push_str(&changed(tag));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns the length of a tag, or of the whole text if the tag has no end. An end within quotes
/// does not count, except in comments.
fn end(tag: &str) -> usize {
    let close = match tag.get(..2) {
        Some("{%") => "%}",
        Some("{{") => "}}",
        _ => return tag.find("#}").map_or(tag.len(), |at| at + 2),
    };
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            _ if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(own) if c == own => quote = None,
            None if tag[at..].starts_with(close) => return at + 2,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            _ => {}
        }
    }
    tag.len()
}

fn changed(tag: &str) -> String {
    if tag.starts_with("{#") {
        return tag.to_owned();
    }
    match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+', ' ', '\n', '\t']) {
        "generation" => return tag.replacen("generation", "if true", 1),
        "endgeneration" => return tag.replacen("endgeneration", "endif", 1),
        _ => {}
    }
    let mut tag = tag.to_owned();
    for method in super::python::METHODS {
        for quote in ['"', '\''] {
            // Only after a value: `["items"]` alone is a list.
            let subscript = format!("[{quote}{method}{quote}]");
            let mut from = 0;
            while let Some(at) = tag[from..].find(&subscript).map(|at| from + at) {
                let is_behind = tag[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']'));
                from = at + 1;
                if is_behind {
                    tag.replace_range(at..at + subscript.len(), &format!(".{method}"));
                }
            }
        }
    }
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_code_is_changed() {
        for (source, expect) in [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% generation %}x{%- endgeneration -%}", "{% if true %}x{%- endif -%}"),
            ("{# generation {% generation %} #}", "{# generation {% generation %} #}"),
            ("x['items'] {{ x['items'] + y[\"get\"] }}", "x['items'] {{ x.items + y.get }}"),
            ("{{ ['items'] }}{{ '}}' ~ x['items'] }}", "{{ ['items'] }}{{ '}}' ~ x.items }}"),
            ("{{ never ends", "{{ never ends"),
        ] {
            assert_eq!(prepared(source), expect);
        }
    }
}
