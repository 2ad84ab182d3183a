//! Calls in Gemma's syntax: `call:NAME{KEY:VALUE,…}`, where texts are between quoting marks and
//! keys are not quoted.

use serde_json::{Map, Number, Value};

use super::{Call, is_name};

/// Maximum depth of lists and objects.
const MAX_DEPTH: usize = 64;

/// Parses one call; `quote` delimits texts.
pub(super) fn read(body: &str, quote: &str) -> Option<Vec<Call>> {
    let rest = body.trim().strip_prefix("call:")?;
    let (name, _) = rest.split_once('{')?;
    is_name(name).then_some(())?;
    let mut source = Unread { rest: &rest[name.len()..], quote };
    let Value::Object(arguments) = source.value(0)? else { return None };
    source.rest.trim().is_empty().then(|| vec![Call { name: name.to_owned(), arguments }])
}

/// The unread rest.
struct Unread<'s> {
    rest: &'s str,
    quote: &'s str,
}

impl<'s> Unread<'s> {
    fn eat(&mut self, text: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn until(&mut self, marks: &[char]) -> Option<&'s str> {
        let at = self.rest.find(marks)?;
        let (text, rest) = self.rest.split_at(at);
        self.rest = rest;
        Some(text)
    }

    fn text(&mut self) -> Option<&'s str> {
        let (text, rest) = self.rest.split_once(self.quote)?;
        self.rest = rest;
        Some(text)
    }

    fn key(&mut self) -> Option<String> {
        let quote = self.quote;
        let key = if self.eat(quote) { self.text()? } else { self.until(&[':'])?.trim() };
        self.eat(":").then(|| key.to_owned())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        (depth < MAX_DEPTH).then_some(())?;
        let quote = self.quote;
        if self.eat(quote) {
            return self.text().map(Value::from);
        }
        if self.eat("{") {
            let mut map = Map::new();
            while !self.eat("}") {
                let key = self.key()?;
                map.insert(key, self.value(depth + 1)?);
                (self.eat(",") || self.rest.trim_start().starts_with('}')).then_some(())?;
            }
            return Some(map.into());
        }
        if self.eat("[") {
            let mut items = Vec::new();
            while !self.eat("]") {
                items.push(self.value(depth + 1)?);
                (self.eat(",") || self.rest.trim_start().starts_with(']')).then_some(())?;
            }
            return Some(items.into());
        }
        match self.until(&[',', '}', ']'])?.trim() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            "null" | "None" => Some(Value::Null),
            number => number.parse::<Number>().ok().map(Value::Number),
        }
    }
}
