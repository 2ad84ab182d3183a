//! Markdown as models write it, as HTML that may stand in the page.
//!
//! ```text
//! text ─▶ delimiters ─▶ pulldown-cmark ─▶ code ─▶ colours      ─▶ HTML ─▶ ammonia ─▶ a text for each block
//!         \(…\) to $…$                    formulas ─▶ MathML
//! ```
//!
//! The result is a list of blocks: a reader who follows an answer as it grows changes the last of them and leaves the others.
//! HTML in the text is shown as text, pictures are links: nothing is fetched that nobody clicked.

mod code;
mod delimiters;
mod formulas;
mod safe;

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd, html};

/// The longest text that is read, in bytes.
pub const LONGEST: usize = 1 << 20;
/// What is read beside `CommonMark`.
const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_MATH);
/// Blocks and marks within one another. HTML is cleaned in a time that grows with the square of it.
const DEEPEST: usize = 64;

/// The blocks of a text, each as HTML. What is longer than [`LONGEST`], or nested without end, is one block of plain text.
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

/// Events on their way into blocks.
#[derive(Default)]
struct Blocks<'a> {
    done: Vec<String>,
    /// Of the block that is open.
    events: Vec<Event<'a>>,
    depth: usize,
    code: Option<CodeBlock>,
    coloured: code::Budget,
}

/// A block of code whose text is being read.
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
            // Models end lines where they mean it: a poem is no prose.
            Event::SoftBreak => self.events.push(Event::HardBreak),
            // As it was written: what stands for a tag may be what the answer is about.
            Event::Html(text) | Event::InlineHtml(text) => self.events.push(Event::Text(text)),
            // The parser brackets blocks of HTML; their lines are a paragraph here.
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

    /// Ends the block where nothing of it is open.
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
