//! Typesets a streamed answer: wraps words at the width of the terminal and renders light Markdown
//! as text styles.
//!
//! Input arrives in pieces of any length; each call returns the text to print now. The typesetter
//! holds back only an incomplete word, marks whose meaning depends on the following text, and the
//! beginning of a line until the kind of line is known. The total output does not depend on how the
//! input is split.
//!
//! Lines of fenced blocks and tables stay unchanged. Marks without a meaning (`2 * 3`,
//! `snake_case`) are plain text. Every style ends with its line, so an unclosed mark affects one
//! line only.

use unicode_width::UnicodeWidthChar;

const BOLD: (&str, &str) = ("\x1b[1m", "\x1b[22m");
const ITALIC: (&str, &str) = ("\x1b[3m", "\x1b[23m");
const CODE: (&str, &str) = ("\x1b[36m", "\x1b[39m");
/// Maximum length of the beginning of a line that is held back, in bytes; a longer one is prose.
const LONGEST_BEGINNING: usize = 16;
/// Characters that may not begin a line, in scripts without spaces between words.
const CLOSING: &str = "、。，．！？：；）」』】》〉”’";

/// Settings of the typesetter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Setting {
    /// Width of a line in columns; `None` disables wrapping.
    pub(super) columns: Option<usize>,
    /// Whether to render Markdown as styles. If false, its marks are plain text.
    pub(super) styled: bool,
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// Not known yet; `Typesetter::beginning` holds the text so far.
    Unknown,
    Prose,
    /// Unchanged text: in a table or a fenced block.
    Verbatim,
}

/// Typesets one answer.
#[derive(Debug)]
pub(super) struct Typesetter {
    setting: Setting,
    line: LineKind,
    beginning: String,
    /// Mark and length of the fence that opened the current block.
    fence: Option<(char, usize)>,
    column: usize,
    /// Column at which wrapped lines continue.
    indent: usize,
    blanks: String,
    word: String,
    /// Width of the word in columns; `word` also contains escape sequences.
    width: usize,
    /// Unresolved marks of one kind and their number. `before` is the preceding character.
    marks: (char, usize),
    before: char,
    /// The marks that opened each style.
    bold: Option<char>,
    italic: Option<char>,
    /// Number of backticks that opened the code span.
    code: Option<usize>,
    heading: bool,
}

impl Typesetter {
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            line: LineKind::Unknown,
            beginning: String::new(),
            fence: None,
            column: 0,
            indent: 0,
            blanks: String::new(),
            word: String::new(),
            width: 0,
            marks: (' ', 0),
            before: '\n',
            bold: None,
            italic: None,
            code: None,
            heading: false,
        }
    }

    /// Adds text and returns the part to print now.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            self.take(c, &mut out);
        }
        out
    }

    /// Ends the answer and returns the text that was held back. The next answer starts on a new
    /// line.
    pub(super) fn end(&mut self) -> String {
        let mut out = String::new();
        if self.line == LineKind::Unknown && !self.beginning.is_empty() {
            self.begin('\n', &mut out);
        }
        self.finish(&mut out);
        *self = Self::new(self.setting);
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        if self.line == LineKind::Unknown {
            if c != '\n' && !self.is_decided(c) {
                self.beginning.push(c);
                return;
            }
            self.begin(c, out);
        }
        match (c, self.line) {
            ('\n', _) => {
                self.finish(out);
                out.push('\n');
                (self.column, self.indent, self.before, self.line) = (0, 0, '\n', LineKind::Unknown);
            }
            (_, LineKind::Verbatim) => out.push(c),
            _ => self.inline(c, out),
        }
    }

    /// Returns true if this character decides the kind of the line.
    fn is_decided(&self, c: char) -> bool {
        let word = self.beginning.trim_start_matches([' ', '\t']);
        if word.is_empty() {
            return !(c == ' ' || c == '\t' || "#-*+`~|>_".contains(c) || c.is_ascii_digit());
        }
        if self.beginning.len() >= LONGEST_BEGINNING || matches!(c, ' ' | '\t') {
            return true;
        }
        let goes_on = word.chars().all(|own| own == c)
            || (word.bytes().all(|b| b.is_ascii_digit()) && ".)0123456789".contains(c));
        !goes_on
    }

    /// Decides the kind of the line; `next` is the character after its beginning.
    fn begin(&mut self, next: char, out: &mut String) {
        let beginning = std::mem::take(&mut self.beginning);
        let word = beginning.trim_start_matches([' ', '\t']);
        let lead = beginning.len() - word.len();
        let (mark, count) = (word.chars().next().unwrap_or(' '), word.chars().count());
        let same = word.chars().all(|c| c == mark);
        let is_blank = matches!(next, ' ' | '\t');
        if let Some((open, length)) = self.fence {
            if same && mark == open && count >= length && next == '\n' {
                self.fence = None;
            }
            return self.verbatim(&beginning, out);
        }
        match mark {
            '`' | '~' if same && count >= 3 => {
                self.fence = Some((mark, count));
                self.verbatim(&beginning, out);
            }
            '|' => self.verbatim(&beginning, out),
            '-' | '*' | '_' if same && count >= 3 && next == '\n' => self.verbatim(&beginning, out),
            '#' if same && count <= 6 && is_blank && self.setting.styled => {
                (self.line, self.heading) = (LineKind::Prose, true);
                out.push_str(BOLD.0);
                // The space after the marks is dropped too.
                self.before = '\0';
            }
            '-' | '*' | '+' if same && count == 1 && is_blank => {
                let bullet = if self.setting.styled { "•".to_owned() } else { word.to_owned() };
                self.item(&beginning[..lead], &bullet, out);
            }
            '0'..='9' if is_blank && word.ends_with(['.', ')']) => self.item(&beginning[..lead], word, out),
            '>' if is_blank => self.item(&beginning[..lead], word, out),
            _ => {
                self.line = LineKind::Prose;
                self.indent = lead;
                for c in beginning.chars() {
                    self.inline(c, out);
                }
            }
        }
    }

    fn verbatim(&mut self, beginning: &str, out: &mut String) {
        self.line = LineKind::Verbatim;
        out.push_str(beginning);
    }

    /// Starts a list item. Wrapped lines align with its text.
    fn item(&mut self, lead: &str, mark: &str, out: &mut String) {
        self.line = LineKind::Prose;
        out.push_str(lead);
        out.push_str(mark);
        self.column = lead.len() + mark.chars().count();
        self.indent = self.column + 1;
        self.before = ' ';
    }

    fn inline(&mut self, c: char, out: &mut String) {
        if self.marks.1 > 0 {
            if c == self.marks.0 {
                self.marks.1 += 1;
                return;
            }
            self.resolve(c, out);
        }
        let is_mark = c == '`' || (self.code.is_none() && matches!(c, '*' | '_'));
        if self.setting.styled && is_mark {
            self.marks = (c, 1);
            return;
        }
        self.character(c, out);
    }

    fn character(&mut self, c: char, out: &mut String) {
        if matches!(c, ' ' | '\t') {
            if self.before == '\0' {
                return;
            }
            self.place(out);
            self.blanks.push(c);
        } else {
            let width = c.width().unwrap_or(0);
            if width > 1 && !CLOSING.contains(c) {
                self.place(out);
            }
            self.word.push(c);
            self.width += width;
        }
        self.before = c;
    }

    /// Resolves the pending marks, now that the next character is known.
    fn resolve(&mut self, next: char, out: &mut String) {
        let (mark, count) = std::mem::replace(&mut self.marks, (' ', 0));
        let opens = !next.is_whitespace() && !self.before.is_alphanumeric();
        let closes = !self.before.is_whitespace() && self.before != '\0' && (mark == '*' || !next.is_alphanumeric());
        let style =
            |word: &mut String, (on, off): (&str, &str), begun: bool| word.push_str(if begun { off } else { on });
        if mark == '`' {
            match self.code {
                None if next.is_whitespace() || count > 2 => {}
                None => {
                    self.code = Some(count);
                    return style(&mut self.word, CODE, false);
                }
                Some(length) if length == count => {
                    self.code = None;
                    self.before = '`';
                    return style(&mut self.word, CODE, true);
                }
                Some(_) => {}
            }
        } else if count <= 3 {
            let wanted = [(count >= 2, &mut self.bold, BOLD), (count != 2, &mut self.italic, ITALIC)];
            let mut wanted: Vec<_> = wanted.into_iter().filter_map(|(is, own, how)| is.then_some((own, how))).collect();
            let ends = closes && wanted.iter().all(|(own, _)| **own == Some(mark));
            let begins = opens && wanted.iter().all(|(own, _)| own.is_none());
            if ends || begins {
                for (own, how) in &mut wanted {
                    // Headings are bold already.
                    if !(self.heading && *how == BOLD) {
                        style(&mut self.word, *how, ends);
                    }
                    **own = begins.then_some(mark);
                }
                // Text after a mark is treated like the start of a word.
                self.before = if begins { '(' } else { ')' };
                return;
            }
        }
        for _ in 0..count {
            self.character(mark, out);
        }
    }

    /// Outputs the pending word, on this line if it fits.
    fn place(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let blanks = self.blanks.chars().count();
        let is_full = |columns| self.column + blanks + self.width > columns && self.column > self.indent;
        if self.width > 0 && self.setting.columns.is_some_and(is_full) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        } else {
            out.push_str(&self.blanks);
            self.column += blanks;
        }
        self.blanks.clear();
        out.push_str(&self.word);
        self.column += std::mem::take(&mut self.width);
        self.word.clear();
    }

    /// Ends a line: outputs the pending text and closes all styles.
    fn finish(&mut self, out: &mut String) {
        if self.marks.1 > 0 {
            self.resolve('\n', out);
        }
        self.place(out);
        self.blanks.clear();
        for (is_on, (_, off)) in [
            (self.code.take().is_some(), CODE),
            (self.italic.take().is_some(), ITALIC),
            (self.bold.take().is_some() | self.heading, BOLD),
        ] {
            if is_on {
                out.push_str(off);
            }
        }
        self.heading = false;
    }
}

#[cfg(test)]
mod tests;
