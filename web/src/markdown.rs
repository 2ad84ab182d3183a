//! Conversion of Markdown, as models write it, to HTML that is safe in the web page.
//!
//! ```text
//! text ─▶ delimiters ─▶ pulldown-cmark ─▶ code ─▶ colours      ─▶ HTML ─▶ ammonia ─▶ blocks
//!         \(…\) to $…$                    formulas ─▶ MathML
//! ```
//!
//! The result is a list of blocks. As an answer grows, only its last block changes, so a page can
//! leave the earlier ones as they are. HTML in the text appears as text, and images become links,
//! so browsers fetch nothing without a click.

mod code;
mod delimiters;
mod formulas;
mod safe;

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd, html};

/// The longest text that is converted, in bytes.
pub const LONGEST: usize = 1 << 20;
/// Extensions of `CommonMark` that are enabled.
const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_MATH);
/// Maximal nesting of blocks and marks. The time to clean HTML grows with the square of it.
const DEEPEST: usize = 64;

/// Converts a text to blocks of HTML. A text that exceeds [`LONGEST`] or the nesting limit becomes
/// one block of plain text.
pub fn render(text: &str) -> Vec<String> {
    if text.len() > LONGEST {
        return vec![plain(text)];
    }
    let text = delimiters::to_dollars(text);
    let mut blocks = Blocks::default();
    for event in Parser::new_ext(&text, OPTIONS) {
        blocks.take(event);
        if blocks.depth > DEEPEST {
            return vec![plain(&text)];
        }
    }
    blocks.done
}

fn plain(text: &str) -> String {
    format!("<pre>{}</pre>", safe::escaped(text))
}

/// Collects parser events into blocks.
#[derive(Default)]
struct Blocks<'a> {
    done: Vec<String>,
    /// Events of the open block.
    events: Vec<Event<'a>>,
    depth: usize,
    code: Option<CodeBlock>,
    coloured: code::Budget,
}

/// A code block whose text is being collected.
struct CodeBlock {
    language: String,
    text: String,
}

impl<'a> Blocks<'a> {
    fn take(&mut self, event: Event<'a>) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(info) => info.split([' ', ',', '{']).next().unwrap_or_default().to_owned(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some(CodeBlock { language, text: String::new() });
                self.depth += 1;
            }
            Event::End(TagEnd::CodeBlock) => {
                if let Some(CodeBlock { language, text }) = self.code.take() {
                    self.events.push(Event::Html(code::block(&language, &text, &mut self.coloured).into()));
                }
                self.close();
            }
            Event::Text(text) if self.code.is_some() => {
                if let Some(code) = &mut self.code {
                    code.text.push_str(&text);
                }
            }
            Event::InlineMath(source) => self.events.push(Event::InlineHtml(formulas::inline(&source).into())),
            Event::DisplayMath(source) => self.events.push(Event::InlineHtml(formulas::display(&source).into())),
            // Models end lines on purpose, for example in poems, so single newlines become line
            // breaks.
            Event::SoftBreak => self.events.push(Event::HardBreak),
            // HTML becomes text, because the answer may be about the tags.
            Event::Html(text) | Event::InlineHtml(text) => self.events.push(Event::Text(text)),
            // The parser emits a block of HTML with its lines; here they become a paragraph.
            Event::Start(Tag::HtmlBlock) => self.open(Event::Start(Tag::Paragraph)),
            Event::End(TagEnd::HtmlBlock) => {
                self.events.push(Event::End(TagEnd::Paragraph));
                self.close();
            }
            Event::Start(Tag::Image { dest_url, title, id, .. }) => {
                self.open(Event::Start(Tag::Link { link_type: LinkType::Inline, dest_url, title, id }));
            }
            Event::End(TagEnd::Image) => {
                self.events.push(Event::End(TagEnd::Link));
                self.close();
            }
            Event::Start(tag) => self.open(Event::Start(tag)),
            Event::End(tag) => {
                self.events.push(Event::End(tag));
                self.close();
            }
            other => {
                self.events.push(other);
                self.flush();
            }
        }
    }

    fn open(&mut self, event: Event<'a>) {
        self.events.push(event);
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.flush();
    }

    /// Ends the block if no element is open.
    fn flush(&mut self) {
        if self.depth > 0 || self.events.is_empty() {
            return;
        }
        let mut text = String::new();
        html::push_html(&mut text, self.events.drain(..));
        self.done.push(safe::cleaned(&text));
    }
}

#[cfg(test)]
mod tests;
