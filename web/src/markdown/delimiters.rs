//! Replaces the delimiters `\(…\)` and `\[…\]`, which most models write around formulas, by the
//! dollars that the parser reads. Code, HTML and URLs stay unchanged.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Parser, Tag, TagEnd};

use super::formulas::LONGEST;
use super::{DEEPEST, OPTIONS};

/// Returns the text with dollars around its formulas.
pub(super) fn to_dollars(text: &str) -> Cow<'_, str> {
    if !text.contains("\\(") && !text.contains("\\[") {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let (kept, mut quotes) = parts(text);
    let mut at = 0;
    for kept in kept {
        if kept.end > at {
            let start = kept.start.max(at);
            formulas(text, at..start, &mut quotes, &mut result);
            result.push_str(&text[start..kept.end]);
            at = kept.end;
        }
    }
    formulas(text, at..text.len(), &mut quotes, &mut result);
    Cow::Owned(result)
}

/// Finds the ranges without formulas, in order, and the quotations, as the parser sees them.
fn parts(text: &str) -> (Vec<Range<usize>>, Quotes) {
    let (mut kept, mut quotes) = (Vec::new(), Vec::new());
    let events = Parser::new_ext(text, OPTIONS).into_offset_iter();
    kept.extend(events.reference_definitions().iter().map(|(_, definition)| definition.span.clone()));
    // The end of the last element inside of a link, which is the end of the link's text.
    let mut last = 0;
    for (event, range) in events {
        match event {
            Event::Start(Tag::CodeBlock(_) | Tag::HtmlBlock) | Event::Code(_) | Event::InlineHtml(_) => {
                kept.push(range.clone());
            }
            Event::Start(Tag::Link { link_type: LinkType::Autolink | LinkType::Email, .. }) => kept.push(range.clone()),
            Event::Start(Tag::BlockQuote(_)) => quotes.push(range.clone()),
            Event::End(TagEnd::Link | TagEnd::Image) => kept.push(last.max(range.start)..range.end),
            _ => {}
        }
        if !matches!(event, Event::Start(_)) {
            last = range.end;
        }
    }
    kept.sort_by_key(|range| range.start);
    (kept, Quotes { rest: quotes.into(), open: Vec::new() })
}

/// The quotations of a text, queried from its beginning to its end.
struct Quotes {
    rest: VecDeque<Range<usize>>,
    /// The ends of the open quotations; inner ones come after outer ones.
    open: Vec<usize>,
}

impl Quotes {
    /// Returns the number of quotations around a position.
    fn depth(&mut self, at: usize) -> usize {
        while let Some(next) = self.rest.pop_front_if(|next| next.start <= at) {
            self.leave(next.start);
            self.open.push(next.end);
        }
        self.leave(at);
        // Deeper nesting is not rendered as Markdown.
        self.open.len().min(DEEPEST)
    }

    fn leave(&mut self, at: usize) {
        while self.open.pop_if(|end| *end <= at).is_some() {}
    }
}

/// Copies a part of a text and replaces the formulas in it.
fn formulas(text: &str, part: Range<usize>, quotes: &mut Quotes, result: &mut String) {
    let (mut at, end) = (part.start, part.end);
    while let Some(backslash) = text[at..end].find('\\') {
        result.push_str(&text[at..at + backslash]);
        at += backslash;
        let rest = &text[at..end];
        at += if let Some((formula, length)) = formula(rest, || quotes.depth(at)) {
            result.push_str(&formula);
            length
        } else {
            // An escaped character does not begin a formula.
            let length = 1 + rest.chars().nth(1).map_or(0, char::len_utf8);
            result.push_str(&rest[..length]);
            length
        };
    }
    result.push_str(&text[at..end]);
}

/// Removes the quotation marks of `deep` levels from a line.
fn unquoted(line: &str, deep: usize) -> &str {
    (0..deep).fold(line, |line, _| line.trim_start().strip_prefix('>').unwrap_or(line))
}

/// Returns the formula at the beginning of the text, between dollars, and its original length.
/// `deep` returns the number of quotations around it.
fn formula(text: &str, deep: impl FnOnce() -> usize) -> Option<(String, usize)> {
    let (end, dollars) = match text.get(..2)? {
        "\\(" => ("\\)", "$"),
        "\\[" => ("\\]", "$$"),
        _ => return None,
    };
    let near = text.floor_char_boundary(LONGEST + 4);
    let inner = &text[2..][..text[2..near].find(end)?];
    // A formula has no empty line, because an empty line begins another paragraph.
    if inner.trim().is_empty() || inner.lines().skip(1).any(|line| line.trim().is_empty()) && dollars == "$" {
        return None;
    }
    let deep = if inner.contains('\n') { deep() } else { 0 };
    let line = |(number, line)| if number == 0 { line } else { unquoted(line, deep) };
    let lines: Vec<&str> = inner.lines().enumerate().map(line).map(str::trim).filter(|line| !line.is_empty()).collect();
    Some((format!("{dollars}{}{dollars}", lines.join(" ")), 4 + inner.len()))
}
