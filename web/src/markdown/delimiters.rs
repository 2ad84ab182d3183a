//! Formulas between `\(` and `\)`, or `\[` and `\]`, as most models write them, between dollars, as the parser reads them.
//! Code, HTML and addresses stay as they are.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Parser, Tag, TagEnd};

use super::formulas::LONGEST;
use super::{DEEPEST, OPTIONS};

/// The same text with dollars around its formulas.
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

/// Where no formula is looked for, in order, and where there are quotations, as the parser sees them.
fn parts(text: &str) -> (Vec<Range<usize>>, Quotes) {
    let (mut kept, mut quotes) = (Vec::new(), Vec::new());
    let events = Parser::new_ext(text, OPTIONS).into_offset_iter();
    kept.extend(events.reference_definitions().iter().map(|(_, definition)| definition.span.clone()));
    // The end of what stands before the end of a link: its text.
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

/// Quotations, which are asked for from the beginning of a text to its end.
struct Quotes {
    rest: VecDeque<Range<usize>>,
    /// The ends of those that are open, the inner ones behind the outer ones.
    open: Vec<usize>,
}

impl Quotes {
    /// In how many of them a place is.
    fn depth(&mut self, at: usize) -> usize {
        while let Some(next) = self.rest.pop_front_if(|next| next.start <= at) {
            self.leave(next.start);
            self.open.push(next.end);
        }
        self.leave(at);
        // What is nested deeper is no Markdown here.
        self.open.len().min(DEEPEST)
    }

    fn leave(&mut self, at: usize) {
        while self.open.pop_if(|end| *end <= at).is_some() {}
    }
}

/// Writes a part of a text in which there may be formulas.
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
            // What is escaped begins nothing.
            let length = 1 + rest.chars().nth(1).map_or(0, char::len_utf8);
            result.push_str(&rest[..length]);
            length
        };
    }
    result.push_str(&text[at..end]);
}

/// A line without the marks of so many quotations.
fn unquoted(line: &str, deep: usize) -> &str {
    (0..deep).fold(line, |line, _| line.trim_start().strip_prefix('>').unwrap_or(line))
}

/// The formula that a text begins with, between dollars, and how long it was; `deep` says in how many quotations it is.
fn formula(text: &str, deep: impl FnOnce() -> usize) -> Option<(String, usize)> {
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
    let deep = if inner.contains('\n') { deep() } else { 0 };
    let line = |(number, line)| if number == 0 { line } else { unquoted(line, deep) };
    let lines: Vec<&str> = inner.lines().enumerate().map(line).map(str::trim).filter(|line| !line.is_empty()).collect();
    Some((format!("{dollars}{}{dollars}", lines.join(" ")), 4 + inner.len()))
}
