//! Calls in tags: values are plain text, converted to the types in the tool's schema.

use serde_json::Map;

use super::{Call, Tools, is_name};
use crate::reader::tools::object;

/// Parses the text between the marks, in either of the two syntaxes.
pub(super) fn read(body: &str, tools: &Tools) -> Option<Vec<Call>> {
    if body.contains("<function=") { functions(body, tools) } else { Some(vec![keys(body, tools)?]) }
}

/// Parses `<function=NAME>` with `<parameter=KEY>VALUE</parameter>`; closing tags can be missing.
fn functions(body: &str, tools: &Tools) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for function in body.split("<function=").skip(1) {
        let (name, parameters) = function.split_once('>')?;
        let name = name.trim().trim_matches('"');
        is_name(name).then_some(())?;
        let parameters = parameters.rsplit_once("</function>").map_or(parameters, |(parameters, _)| parameters);
        // Functionary writes all arguments as one JSON object.
        if let Some(arguments) = serde_json::from_str(parameters.trim()).ok().and_then(object) {
            calls.push(Call { name: name.to_owned(), arguments });
            continue;
        }
        let mut arguments = Map::new();
        for parameter in parameters.split("<parameter=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let value = value.rsplit_once("</parameter>").map_or(value, |(value, _)| value);
            // One line break on either side belongs to the format.
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let key = key.trim().trim_matches('"');
            arguments.insert(key.to_owned(), tools.argument(name, key, value));
        }
        calls.push(Call { name: name.to_owned(), arguments });
    }
    Some(calls)
}

/// Parses `NAME`, followed by alternating `<arg_key>KEY</arg_key>` and
/// `<arg_value>VALUE</arg_value>`.
fn keys(body: &str, tools: &Tools) -> Option<Call> {
    let (name, _) = body.split_once("<arg_key>").unwrap_or((body, ""));
    let name = name.trim();
    is_name(name).then_some(())?;
    let mut arguments = Map::new();
    for pair in body.split("<arg_key>").skip(1) {
        let (key, value) = pair.split_once("</arg_key>")?;
        let (_, value) = value.split_once("<arg_value>")?;
        let (value, _) = value.rsplit_once("</arg_value>").unwrap_or((value, ""));
        arguments.insert(key.trim().to_owned(), tools.argument(name, key.trim(), value));
    }
    Some(Call { name: name.to_owned(), arguments })
}
