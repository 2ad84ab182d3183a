//! Formulas between `\(` and `\)`, or `\[` and `\]`, as most models write them, between dollars, as the parser reads them.
//! Code stays as it is.

use std::borrow::Cow;

use super::formulas::LONGEST;

/// The same text with dollars around its formulas.
pub(super) fn to_dollars(text: &str) -> Cow<'_, str> {
    if !text.contains("\\(") && !text.contains("\\[") {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let (mut fence, mut rest) = (None, text);
    while !rest.is_empty() {
        let line = rest.split_inclusive('\n').next().unwrap_or(rest);
        match (fence, opens(line)) {
            (Some(open), Some(close)) if closes(line, open, close) => fence = None,
            (None, Some(open)) => fence = Some(open),
            (None, None) => {
                rest = formulas(rest, line.len(), &mut result);
                continue;
            }
            (Some(_), _) => {}
        }
        result.push_str(line);
        rest = &rest[line.len()..];
    }
    Cow::Owned(result)
}

/// A line of code's beginning or end.
#[derive(Clone, Copy)]
struct Fence {
    character: char,
    length: usize,
}

fn opens(line: &str) -> Option<Fence> {
    let line = line.trim_start_matches([' ', '\t', '>', '-', '*', '+']);
    let line = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(['.', ')', ' ']);
    let character = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let length = line.chars().take_while(|c| *c == character).count();
    // With a mark behind it, it is a span in a line.
    let is_span = character == '`' && line[length..].contains('`');
    (length >= 3 && !is_span).then_some(Fence { character, length })
}

fn closes(line: &str, open: Fence, close: Fence) -> bool {
    let rest = line.trim_start_matches([' ', '\t', '>']).trim_start_matches(close.character);
    close.character == open.character && close.length >= open.length && rest.trim().is_empty()
}

/// Writes what begins in a line, `length` bytes of `text`; gives what is behind it. A formula may end in a later line.
fn formulas<'t>(text: &'t str, length: usize, result: &mut String) -> &'t str {
    let mut at = 0;
    while at < length {
        let rest = &text[at..];
        if rest.starts_with('`') {
            let ticks = rest.chars().take_while(|c| *c == '`').count();
            let span = rest[ticks..].find(&rest[..ticks]).filter(|end| ticks + end < length - at);
            let end = ticks + span.map_or(0, |end| end + ticks);
            result.push_str(&rest[..end]);
            at += end;
        } else if rest.starts_with("\\\\") {
            result.push_str("\\\\");
            at += 2;
        } else if let Some((formula, whole)) = formula(rest) {
            result.push_str(&formula);
            at += whole;
        } else {
            let character = rest.chars().next().map_or(1, char::len_utf8);
            result.push_str(&rest[..character]);
            at += character;
        }
    }
    &text[at..]
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
