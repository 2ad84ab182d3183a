//! Lexer of Go templates: splits the source into texts and the words of actions.

use crate::Error;

/// A token, and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LexerToken {
    pub(super) word: Word,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    /// Text outside of actions.
    Text(String),
    /// `{{`.
    Open,
    /// `}}`.
    Close,
    /// White space between words.
    Space,
    /// A name or a keyword.
    Name(String),
    /// `.NAME`.
    Field(String),
    /// `$NAME`, or `$` alone.
    Variable(String),
    /// `.` alone.
    Dot,
    Quoted(String),
    Int(i64),
    Float(f64),
    /// `:=`, `=`, `|`, `,`, `(` or `)`.
    Sign(&'static str),
}

const SIGNS: [&str; 6] = [":=", "=", "|", ",", "(", ")"];
/// Characters that a `-` beside an action trims.
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// Splits a template into tokens; comments are omitted.
pub(super) fn lex(source: &str) -> Result<Vec<LexerToken>, Error> {
    let mut lexer = Lexer { source, at: 0, counted: (0, 1), tokens: Vec::new() };
    let mut trims = false;
    while lexer.at < source.len() {
        let rest = lexer.rest();
        let open = rest.find("{{");
        let mut text = &rest[..open.unwrap_or(rest.len())];
        if trims {
            text = text.trim_start_matches(BLANKS);
        }
        let trims_before = open.is_some_and(|open| trim_marker(&rest[open + 2..]));
        if trims_before {
            text = text.trim_end_matches(BLANKS);
        }
        if !text.is_empty() {
            lexer.push(Word::Text(text.to_owned()));
        }
        let Some(open) = open else { break };
        lexer.at += open;
        trims = lexer.action(trims_before)?;
    }
    Ok(lexer.tokens)
}

/// Whether an action begins with `- `.
fn trim_marker(action: &str) -> bool {
    action.strip_prefix('-').is_some_and(|rest| rest.starts_with(BLANKS))
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// Position of the last token, and its line.
    counted: (usize, usize),
    tokens: Vec<LexerToken>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line(&self) -> usize {
        let (at, line) = self.counted;
        self.source[at..self.at].matches('\n').count() + line
    }

    fn push(&mut self, word: Word) {
        self.counted = (self.at, self.line());
        self.tokens.push(LexerToken { word, line: self.counted.1 });
    }

    fn failed<T>(&self, reason: &str) -> Result<T, Error> {
        Err(Error::Template(format!("{reason} (line {})", self.line())))
    }

    /// Reads from `{{` to the end of `}}`; returns whether the text that follows is to be trimmed.
    fn action(&mut self, trims: bool) -> Result<bool, Error> {
        self.push(Word::Open);
        self.at += if trims { 4 } else { 2 };
        if let Some(comment) = self.rest().strip_prefix("/*") {
            let Some(end) = comment.find("*/") else { return self.failed("a comment is not closed") };
            self.tokens.pop();
            self.at += end + 4;
            return match self.end() {
                Some(trims) => Ok(trims),
                None => self.failed("a comment ends before the end of its action"),
            };
        }
        loop {
            if let Some(trims) = self.end() {
                self.push(Word::Close);
                return Ok(trims);
            }
            self.word()?;
        }
    }

    /// Skips the end of an action, if it is at the current position; returns whether it trims.
    fn end(&mut self) -> Option<bool> {
        let rest = self.rest();
        let blank = rest.trim_start_matches(BLANKS);
        if blank.len() < rest.len() && blank.starts_with("-}}") {
            self.at += rest.len() - blank.len() + 3;
            return Some(true);
        }
        rest.starts_with("}}").then(|| {
            self.at += 2;
            false
        })
    }

    fn word(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return self.failed("an action is not closed") };
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        let name_of = |text: &'s str| &text[..text.find(|c: char| !is_name(c)).unwrap_or(text.len())];
        let (word, length) = match first {
            _ if BLANKS.contains(&first) => (Word::Space, rest.len() - rest.trim_start_matches(BLANKS).len()),
            '"' | '\'' | '`' => return self.quoted(first),
            '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => match name_of(&rest[1..]) {
                "" => (Word::Dot, 1),
                name => (Word::Field(name.to_owned()), 1 + name.len()),
            },
            '$' => {
                let name = name_of(&rest[1..]);
                (Word::Variable(name.to_owned()), 1 + name.len())
            }
            '0'..='9' | '+' | '-' | '.' => return self.number(),
            _ if is_name(first) => {
                let name = name_of(rest);
                (Word::Name(name.to_owned()), name.len())
            }
            _ => match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
                Some(sign) => (Word::Sign(sign), sign.len()),
                None => return self.failed(&format!("unexpected `{first}` in an action")),
            },
        };
        self.push(word);
        self.at += length;
        Ok(())
    }

    fn number(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let part = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        let mut length = rest.find(|c: char| !part(c)).unwrap_or(rest.len());
        // A sign within a number is only valid in an exponent.
        if let Some(sign) = rest[1..length].find(['+', '-']).filter(|at| !rest[..=*at].ends_with(['e', 'E', 'p', 'P']))
        {
            length = sign + 1;
        }
        let text = rest[..length].replace('_', "");
        let (sign, digits) = text.strip_prefix('-').map_or((1, text.trim_start_matches('+')), |digits| (-1, digits));
        let mut radix = [("0x", 16), ("0X", 16), ("0b", 2), ("0o", 8)].into_iter();
        let prefixed = radix.find_map(|(prefix, radix)| i64::from_str_radix(digits.strip_prefix(prefix)?, radix).ok());
        let whole = prefixed.or_else(|| digits.parse().ok());
        let word = match (whole, text.parse::<f64>()) {
            (Some(whole), _) => Word::Int(sign * whole),
            (None, Ok(number)) => Word::Float(number),
            (None, Err(_)) => return self.failed(&format!("`{}` is no number", &rest[..length])),
        };
        self.push(word);
        self.at += length;
        Ok(())
    }

    /// Reads a quoted text or character.
    fn quoted(&mut self, quote: char) -> Result<(), Error> {
        let body = &self.rest()[1..];
        let (text, length) = if quote == '`' {
            match body.find('`') {
                Some(end) => (body[..end].to_owned(), end),
                None => return self.failed("a raw text is not closed"),
            }
        } else {
            match unquoted(body, quote) {
                Some(read) => read,
                None => {
                    return self.failed("a text between quotes is not closed, or has an escape that Go does not know");
                }
            }
        };
        let mut chars = text.chars();
        let word = match (quote, chars.next(), chars.next()) {
            ('\'', Some(c), None) => Word::Int(i64::from(u32::from(c))),
            ('\'', ..) => return self.failed("a character literal must contain exactly one character"),
            _ => Word::Quoted(text),
        };
        self.push(word);
        self.at += length + 2;
        Ok(())
    }
}

/// Returns the unescaped text before the closing quote, and its length in the source.
fn unquoted(body: &str, quote: char) -> Option<(String, usize)> {
    let mut bytes = Vec::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Some((String::from_utf8(bytes).ok()?, at)),
            '\n' => return None,
            '\\' => {
                let (_, escape) = chars.next()?;
                let mut digits = |count: usize, radix: u32, first: Option<char>| {
                    let text: String = first.into_iter().chain(chars.by_ref().take(count).map(|(_, c)| c)).collect();
                    u32::from_str_radix(&text, radix).ok()
                };
                let mut put = |c: char| bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                match escape {
                    'n' => put('\n'),
                    't' => put('\t'),
                    'r' => put('\r'),
                    'a' => put('\u{7}'),
                    'b' => put('\u{8}'),
                    'f' => put('\u{c}'),
                    'v' => put('\u{b}'),
                    '\\' | '\'' | '"' => put(escape),
                    'u' => put(char::from_u32(digits(4, 16, None)?)?),
                    'U' => put(char::from_u32(digits(8, 16, None)?)?),
                    'x' => bytes.push(u8::try_from(digits(2, 16, None)?).ok()?),
                    '0'..='7' => bytes.push(u8::try_from(digits(2, 8, Some(escape))?).ok()?),
                    _ => return None,
                }
            }
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    None
}
