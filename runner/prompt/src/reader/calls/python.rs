//! Calls in Python's syntax: `NAME(KEY=VALUE, …)`, alone, in lines, in a list, or within
//! `print(…)`.

use serde_json::{Map, Number, Value};

use super::{Call, is_name};

/// Maximum depth of lists and dictionaries.
const MAX_DEPTH: usize = 64;

/// Parses a whole text as calls.
pub(super) fn read(body: &str) -> Option<Vec<Call>> {
    let body = body.trim();
    let inner = body.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(body);
    let mut source = Unread(inner);
    let mut calls = Vec::new();
    loop {
        while source.eat(',') || source.eat(';') {}
        if source.rest().is_empty() {
            return (!calls.is_empty()).then_some(calls);
        }
        calls.push(source.call()?);
    }
}

/// Parses a text that is one value.
pub(crate) fn literal(text: &str) -> Option<Value> {
    let mut source = Unread(text);
    let value = source.value(0)?;
    source.rest().is_empty().then_some(value)
}

/// The unread rest.
struct Unread<'s>(&'s str);

impl<'s> Unread<'s> {
    fn rest(&mut self) -> &'s str {
        self.0 = self.0.trim_start();
        self.0
    }

    fn eat(&mut self, c: char) -> bool {
        let after = self.rest().strip_prefix(c);
        self.0 = after.unwrap_or(self.0);
        after.is_some()
    }

    fn word(&mut self) -> &'s str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_.-+".contains(c))).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        self.0 = after;
        word
    }

    fn call(&mut self) -> Option<Call> {
        let name = self.word();
        self.eat('(').then_some(())?;
        if name == "print" {
            let inner = self.call()?;
            return self.eat(')').then_some(inner);
        }
        // Llama's built-in tools are objects with one method.
        let name = name.strip_suffix(".call").unwrap_or(name);
        is_name(name).then_some(())?;
        let mut arguments = Map::new();
        while !self.eat(')') {
            let key = self.word();
            (is_name(key) && self.eat('=')).then_some(())?;
            arguments.insert(key.to_owned(), self.value(0)?);
            (self.eat(',') || self.rest().starts_with(')')).then_some(())?;
        }
        Some(Call { name: name.to_owned(), arguments })
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        (depth < MAX_DEPTH).then_some(())?;
        match self.rest().chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::from),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '{' => self.dictionary(depth),
            _ => match self.word() {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                number => number.parse::<Number>().ok().map(Value::Number),
            },
        }
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Value> {
        self.eat(open).then_some(())?;
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(self.value(depth + 1)?);
            (self.eat(',') || self.rest().starts_with(close)).then_some(())?;
        }
        Some(Value::Array(items))
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.eat('{').then_some(())?;
        let mut map = Map::new();
        while !self.eat('}') {
            let quote = self.rest().chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let key = self.string(quote)?;
            self.eat(':').then_some(())?;
            map.insert(key, self.value(depth + 1)?);
            (self.eat(',') || self.rest().starts_with('}')).then_some(())?;
        }
        Some(Value::Object(map))
    }

    /// Parses a string; escapes are Python's, and unknown ones stay unchanged.
    fn string(&mut self, quote: char) -> Option<String> {
        self.eat(quote).then_some(())?;
        let mut text = String::new();
        let mut chars = self.0.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.0 = &self.0[at + c.len_utf8()..];
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, digit)| digit).collect();
                        text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    same @ ('\\' | '\'' | '"') => text.push(same),
                    other => text.extend(['\\', other]),
                },
                other => text.push(other),
            }
        }
        None
    }
}
