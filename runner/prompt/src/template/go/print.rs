//! `print`, `println` and `printf`, as in Go's package `fmt`.

use std::fmt::Write;

use super::value::{Value, general};

/// Maximum width or precision in a format.
const MAX_SIZE: usize = 1024;

/// Concatenates values, with a blank between two values if neither is a text.
pub(super) fn sprint(values: &[Value]) -> String {
    let mut out = String::new();
    for (position, value) in values.iter().enumerate() {
        let is_text = |value: &Value| matches!(value, Value::Text(_));
        if position > 0 && !is_text(value) && !is_text(&values[position - 1]) {
            out.push(' ');
        }
        out.push_str(&value.shown());
    }
    out
}

/// Joins values with blanks, and appends a line break.
pub(super) fn sprintln(values: &[Value]) -> String {
    values.iter().map(Value::shown).collect::<Vec<_>>().join(" ") + "\n"
}

/// A directive of a format.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the format")]
struct Directive {
    left: bool,
    plus: bool,
    zeros: bool,
    sharp: bool,
    blank: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats values.
pub(super) fn sprintf(format: &str, values: &[Value]) -> String {
    let mut out = String::new();
    let mut rest = format;
    let mut values = values.iter();
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let directive = directive(&mut rest);
        let Some(verb) = rest.chars().next() else {
            out.push_str("%!(NOVERB)");
            return out;
        };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            out.push('%');
            continue;
        }
        match values.next() {
            Some(value) => out.push_str(&directive.print(verb, value)),
            None => {
                let _ = write!(out, "%!{verb}(MISSING)");
            }
        }
    }
    out.push_str(rest);
    let extra: Vec<String> = values.map(|value| format!("{}={}", value.kind(), value.shown())).collect();
    if !extra.is_empty() {
        let _ = write!(out, "%!(EXTRA {})", extra.join(", "));
    }
    out
}

fn directive(rest: &mut &str) -> Directive {
    let mut directive = Directive::default();
    while let Some(flag) = rest.chars().next().filter(|c| "+-# 0".contains(*c)) {
        match flag {
            '-' => directive.left = true,
            '+' => directive.plus = true,
            '#' => directive.sharp = true,
            ' ' => directive.blank = true,
            _ => directive.zeros = true,
        }
        *rest = &rest[1..];
    }
    directive.width = number(rest).unwrap_or_default();
    if let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        directive.precision = Some(number(rest).unwrap_or_default());
    }
    directive
}

fn number(rest: &mut &str) -> Option<usize> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    digits.parse().ok().map(|number: usize| number.min(MAX_SIZE))
}

impl Directive {
    fn print(&self, verb: char, value: &Value) -> String {
        let body = match (verb, value) {
            ('v' | 'g', Value::Float(number)) => self.signed(general(*number)),
            ('v' | 'd', Value::Int(number)) => self.signed(number.to_string()),
            ('v', value) => value.shown(),
            ('s', Value::Text(text)) => self.cut(text),
            ('s', Value::List(_) | Value::Map(_) | Value::Struct(_)) => value.shown(),
            ('q', Value::Text(text)) => quoted(&self.cut(text)),
            ('q', Value::List(list)) => {
                let items: Vec<String> = list.items.iter().map(|item| self.print('q', item)).collect();
                format!("[{}]", items.join(" "))
            }
            ('t', Value::Bool(flag)) => flag.to_string(),
            ('T', Value::Nil) => "<nil>".to_owned(),
            ('T', value) => value.kind().to_owned(),
            ('c', Value::Int(number)) => character(*number).to_string(),
            ('x', Value::Int(number)) => format!("{}{:x}", if *number < 0 { "-" } else { "" }, number.unsigned_abs()),
            ('X', Value::Int(number)) => format!("{}{:X}", if *number < 0 { "-" } else { "" }, number.unsigned_abs()),
            ('x', Value::Text(text)) => hexadecimal(text),
            ('X', Value::Text(text)) => hexadecimal(text).to_uppercase(),
            ('f' | 'F', Value::Float(number)) => self.signed(format!("{number:.*}", self.precision.unwrap_or(6))),
            ('e', Value::Float(number)) => self.signed(scientific(*number, self.precision.unwrap_or(6))),
            (_, Value::Nil) => format!("%!{verb}(<nil>)"),
            (_, value) => format!("%!{verb}({}={})", value.kind(), value.shown()),
        };
        self.padded(body, matches!(value, Value::Int(_) | Value::Float(_)))
    }

    fn signed(&self, text: String) -> String {
        let sign = if self.plus {
            "+"
        } else if self.blank {
            " "
        } else {
            ""
        };
        if text.starts_with(['-', '+']) { text } else { sign.to_owned() + &text }
    }

    fn cut(&self, text: &str) -> String {
        text.chars().take(self.precision.unwrap_or(usize::MAX)).collect()
    }

    fn padded(&self, text: String, is_number: bool) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if self.left {
            return text + &" ".repeat(missing);
        }
        if self.zeros && is_number {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            return [sign, &"0".repeat(missing), digits].concat();
        }
        (if self.zeros { "0" } else { " " }).repeat(missing) + &text
    }
}

fn hexadecimal(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn character(number: i64) -> char {
    u32::try_from(number).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
    format!("{digits}e{sign}{size:0>2}")
}

/// Quotes a text as in Go's source code.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_control() && c.is_ascii() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}
