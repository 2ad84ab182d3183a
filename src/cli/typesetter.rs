//! Sets an answer as it streams: words wrapped at the width of the terminal, light Markdown as styles of text.
//!
//! Text goes in as it comes, in pieces of any length; what comes out is to be printed now. It holds back at most a word that is not
//! complete, marks that mean something only with the text after them, and the beginning of a line until the kind of line is known. However a
//! text is cut, all that comes out together is the same.
//!
//! Lines of fenced blocks and tables are left as they are. Marks that do nothing (`2 * 3`, `snake_case`) are text. No style lasts longer
//! than its line, so that a mark that is never closed costs one line.

use unicode_width::UnicodeWidthChar;

const BOLD: (&str, &str) = ("\x1b[1m", "\x1b[22m");
const ITALIC: (&str, &str) = ("\x1b[3m", "\x1b[23m");
const CODE: (&str, &str) = ("\x1b[36m", "\x1b[39m");
/// The longest beginning of a line that is looked at before it is taken for text.
const LONGEST_BEGINNING: usize = 16;
/// Characters that may not begin a line, in scripts without spaces between words.
const CLOSING: &str = "、。，．！？：；）」』】》〉”’";

/// How an answer is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Setting {
    /// Columns of a line; none wraps nothing.
    pub(super) columns: Option<usize>,
    /// Whether Markdown becomes styles; else its marks are text.
    pub(super) styled: bool,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Its beginning is in `Typesetter::beginning`.
    Unknown,
    Prose,
    /// As it is: of a table or of a block.
    Verbatim,
}

/// Sets one answer.
#[derive(Debug)]
pub(super) struct Typesetter {
    setting: Setting,
    line: Line,
    beginning: String,
    /// The mark of the block that the text is in, and its length.
    fence: Option<(char, usize)>,
    column: usize,
    /// Where lines go on that were wrapped.
    indent: usize,
    blanks: String,
    word: String,
    /// Columns of the word: it has escapes, too.
    width: usize,
    /// Marks of one kind that came last, with the character before them.
    marks: (char, usize),
    before: char,
    /// By which mark each style was begun.
    bold: Option<char>,
    italic: Option<char>,
    /// How many marks have begun the code.
    code: Option<usize>,
    heading: bool,
}

impl Typesetter {
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            line: Line::Unknown,
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

    /// Takes more of the text; gives what can be printed.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            self.take(c, &mut out);
        }
        out
    }

    /// The answer is over: gives what was held back. The next answer begins a line.
    pub(super) fn end(&mut self) -> String {
        let mut out = String::new();
        if self.line == Line::Unknown && !self.beginning.is_empty() {
            self.begin('\n', &mut out);
        }
        self.finish(&mut out);
        *self = Self::new(self.setting);
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        if self.line == Line::Unknown {
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
                (self.column, self.indent, self.before, self.line) = (0, 0, '\n', Line::Unknown);
            }
            (_, Line::Verbatim) => out.push(c),
            _ => self.inline(c, out),
        }
    }

    /// Whether the beginning of a line says with this character what line it is.
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

    /// Decides what line this is; `next` comes after its beginning.
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
                (self.line, self.heading) = (Line::Prose, true);
                out.push_str(BOLD.0);
                // The blank after the marks goes with them.
                self.before = '\0';
            }
            '-' | '*' | '+' if same && count == 1 && is_blank => {
                let bullet = if self.setting.styled { "•".to_owned() } else { word.to_owned() };
                self.item(&beginning[..lead], &bullet, out);
            }
            '0'..='9' if is_blank && word.ends_with(['.', ')']) => self.item(&beginning[..lead], word, out),
            '>' if is_blank => self.item(&beginning[..lead], word, out),
            _ => {
                self.line = Line::Prose;
                self.indent = lead;
                for c in beginning.chars() {
                    self.inline(c, out);
                }
            }
        }
    }

    fn verbatim(&mut self, beginning: &str, out: &mut String) {
        self.line = Line::Verbatim;
        out.push_str(beginning);
    }

    /// An item of a list: what is wrapped stands below its text.
    fn item(&mut self, lead: &str, mark: &str, out: &mut String) {
        self.line = Line::Prose;
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

    /// Decides what marks do, now that it is known what follows.
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
                    // A title is bold already.
                    if !(self.heading && *how == BOLD) {
                        style(&mut self.word, *how, ends);
                    }
                    **own = begins.then_some(mark);
                }
                // What stands behind a mark is judged as if it stood at the beginning of a word.
                self.before = if begins { '(' } else { ')' };
                return;
            }
        }
        for _ in 0..count {
            self.character(mark, out);
        }
    }

    /// Puts the word down, in this line where it has room.
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

    /// Ends a line: what is held back, and every style.
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
