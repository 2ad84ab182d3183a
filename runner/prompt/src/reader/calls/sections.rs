//! Calls in sections, each with marks around the name and before the arguments.
//!
//! `DeepSeek` V3 and R1 write `function`, the separator, the name, and the arguments in a fenced
//! block. V3.1 writes the name, the separator and bare arguments. Kimi's names are
//! `functions.NAME:0`.

use serde_json::Value;

use super::{Call, is_name};
use crate::reader::tools::object;

pub(super) fn read(body: &str, begin: &str, separator: &str, end: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for section in body.split(begin).skip(1) {
        let section = section.split_once(end).map_or(section, |(section, _)| section);
        let (head, tail) = section.split_once(separator)?;
        let (name, arguments) = match (head.trim(), tail.split_once('\n')) {
            ("function", Some((name, arguments))) => (name.trim(), arguments),
            (name, _) => (name, tail),
        };
        let name = name.strip_prefix("functions.").unwrap_or(name);
        let name = match name.rsplit_once(':') {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => name,
        };
        let arguments = arguments.trim().trim_start_matches("```json").trim_matches('`').trim();
        let arguments: Value = serde_json::from_str(arguments).ok()?;
        is_name(name).then_some(())?;
        calls.push(Call { name: name.to_owned(), arguments: object(arguments)? });
    }
    Some(calls)
}
