//! The HTML elements and attributes that the web page may contain.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use ammonia::Builder;

/// Elements of `MathML` Core, except for links, embedded HTML and scripts.
const MATH: [&str; 27] = [
    "math",
    "merror",
    "mfrac",
    "mi",
    "mmultiscripts",
    "mn",
    "mo",
    "mover",
    "mpadded",
    "mphantom",
    "mprescripts",
    "mroot",
    "mrow",
    "ms",
    "mspace",
    "msqrt",
    "mstyle",
    "msub",
    "msubsup",
    "msup",
    "mtable",
    "mtd",
    "mtext",
    "mtr",
    "munder",
    "munderover",
    "none",
];
/// Elements that Markdown generates.
const TEXT: [&str; 30] = [
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "div",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "input",
    "li",
    "ol",
    "p",
    "pre",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
];
/// Attributes of formulas: sizes, spaces and forms. None of them is a URL.
const MATH_ATTRIBUTES: [&str; 22] = [
    "accent",
    "accentunder",
    "columnalign",
    "columnspan",
    "depth",
    "dir",
    "display",
    "displaystyle",
    "fence",
    "form",
    "height",
    "linethickness",
    "lspace",
    "mathvariant",
    "maxsize",
    "minsize",
    "movablelimits",
    "rspace",
    "scriptlevel",
    "separator",
    "stretchy",
    "symmetric",
];

/// Removes everything active from HTML.
pub(super) fn cleaned(html: &str) -> String {
    static RULES: OnceLock<Builder<'static>> = OnceLock::new();
    RULES.get_or_init(rules).clean(html).to_string()
}

fn rules() -> Builder<'static> {
    let mut rules = Builder::empty();
    let mut attributes: HashMap<&str, HashSet<&str>> =
        MATH.iter().map(|element| (*element, MATH_ATTRIBUTES.into())).collect();
    attributes.extend([
        ("a", HashSet::from(["href", "title"])),
        ("code", HashSet::from(["class"])),
        ("div", HashSet::from(["class"])),
        ("input", HashSet::from(["checked", "disabled", "type"])),
        ("ol", HashSet::from(["start"])),
        ("pre", HashSet::from(["data-language", "tabindex"])),
        ("span", HashSet::from(["class"])),
        ("td", HashSet::from(["class"])),
        ("th", HashSet::from(["class"])),
    ]);
    rules
        .tags(MATH.into_iter().chain(TEXT).collect())
        .tag_attributes(attributes)
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        // A relative URL would lead to this daemon.
        .url_relative(ammonia::UrlRelative::Deny)
        .link_rel(Some("noopener noreferrer nofollow"))
        .set_tag_attribute_value("a", "target", "_blank")
        // Allows only the checkboxes of task lists, no other input fields.
        .set_tag_attribute_value("input", "type", "checkbox")
        .set_tag_attribute_value("input", "disabled", "")
        .attribute_filter(|_, attribute, value| {
            // Allows only our own classes; other classes could imitate parts of the page.
            let is_own = |class: &str| class == "formula" || class.starts_with("c-");
            (attribute != "class" || value.split_whitespace().all(is_own)).then(|| value.into())
        });
    rules
}

/// Escapes a text for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}
