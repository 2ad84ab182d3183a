//! Formulas between `\(` and `\)`, or `\[` and `\]`, as most models write them, between dollars, as the parser reads them.
//! Code stays as it is.

use std::borrow::Cow;
use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag};

use super::OPTIONS;
use super::formulas::LONGEST;

/// The same text with dollars around its formulas.
pub(super) fn to_dollars(text: &str) -> Cow<'_, str> {
    if !text.contains("\\(") && !text.contains("\\[") {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for code in code(text) {
        formulas(&text[at..code.start], &mut result);
        result.push_str(&text[code.clone()]);
        at = code.end;
    }
    formulas(&text[at..], &mut result);
    Cow::Owned(result)
}

/// Where there is code, as the parser sees it: blocks and spans, in their order.
fn code(text: &str) -> impl Iterator<Item = Range<usize>> {
    let events = Parser::new_ext(text, OPTIONS).into_offset_iter();
    events
        .filter_map(|(event, range)| matches!(event, Event::Start(Tag::CodeBlock(_)) | Event::Code(_)).then_some(range))
}

/// Writes a text without code.
fn formulas(text: &str, result: &mut String) {
    let mut rest = text;
    while let Some(backslash) = rest.find('\\') {
        result.push_str(&rest[..backslash]);
        rest = &rest[backslash..];
        let length = if let Some((formula, length)) = formula(rest) {
            result.push_str(&formula);
            length
        } else {
            // What is escaped begins nothing.
            let length = 1 + rest.chars().nth(1).map_or(0, char::len_utf8);
            result.push_str(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    result.push_str(rest);
}

/// The formula that a text begins with, between dollars, and how long it was.
fn formula(text: &str) -> Option<(String, usize)> {
    let (end, dollars) = match text.get(..2)? {
        "\\(" => ("\\)", "$"),
        "\\[" => ("\\]", "$$"),
        _ => return None,
    };
    let near = text.floor_char_boundary(LONGEST + 4);
    let inner = &text[2..][..text[2..near].find(end)?];
    // A formula has no empty line: what is behind one is another paragraph.
    if inner.trim().is_empty() || inner.lines().skip(1).any(|line| line.trim().is_empty()) && dollars == "$" {
        return None;
    }
    let lines: Vec<&str> = inner.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Some((format!("{dollars}{}{dollars}", lines.join(" ")), 4 + inner.len()))
}
