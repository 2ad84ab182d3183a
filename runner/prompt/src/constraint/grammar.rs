//! Grammars for the formats of an answer.

use llguidance::api::TopLevelGrammar;
use protocol::{Format, ToolChoice};
use serde_json::{Value, json};

use super::schema::prepared;
use crate::reader::first_mark;
use crate::{Dialect, Error, Tokenizer, Tools};

/// Maximum length of a client's grammar or pattern in bytes.
const MAX_GRAMMAR: usize = 256 << 10;

/// Returns the grammar of a format.
pub(super) fn of(format: &Format) -> Result<TopLevelGrammar, Error> {
    let bounded = |text: &String| {
        if text.len() <= MAX_GRAMMAR {
            return Ok(text.clone());
        }
        Err(Error::Format(format!("the grammar has {} bytes, at most {MAX_GRAMMAR} are taken", text.len())))
    };
    Ok(match format {
        Format::Json => TopLevelGrammar::from_json_schema(Value::Object(prepared(&json!({"type": "object"}))?)),
        Format::Schema { schema } => TopLevelGrammar::from_json_schema(Value::Object(prepared(schema)?)),
        Format::Regex { pattern } => TopLevelGrammar::from_regex(&bounded(pattern)?),
        Format::Lark { grammar } => TopLevelGrammar::from_lark(bounded(grammar)?),
    })
}

/// Returns the grammar of a call of one of the tools, in the dialect's syntax. Marks that are
/// tokens of the vocabulary are matched as those tokens.
pub(super) fn call(
    tokenizer: &Tokenizer,
    dialect: &Dialect,
    tools: &Tools,
    choice: &ToolChoice,
) -> Result<TopLevelGrammar, Error> {
    let mut tools = tools.sorted();
    if let ToolChoice::Named { name } = choice {
        tools.retain(|(known, _)| known == name);
        if tools.is_empty() {
            return Err(Error::Format(format!("the tool `{name}` must be called, and the request does not offer it")));
        }
    }
    if tools.is_empty() {
        return Err(Error::Format("a tool must be called, and the request offers none".to_owned()));
    }
    let spelling = dialect.spelling();
    let markers = dialect.markers();
    let literal = |text: &str| literal(text, &markers, tokenizer);
    let mut rules = Vec::new();
    for (position, (name, schema)) in tools.iter().enumerate() {
        if !crate::reader::is_name(name) {
            return Err(Error::Format(format!(
                "`{name}` is no name of a tool: letters, digits, `_`, `-`, `.`, `:` and `/`, at most 256"
            )));
        }
        let mut schema = prepared(schema)?;
        schema.entry("type").or_insert_with(|| "object".into());
        let before = literal(&[spelling.before, name, spelling.between].concat());
        let after = literal(spelling.after);
        rules.push(format!("call_{position}: {before} arguments_{position} {after}"));
        rules.push(format!("arguments_{position}: %json {}", Value::Object(schema)));
    }
    let calls: Vec<String> = (0..tools.len()).map(|position| format!("call_{position}")).collect();
    Ok(TopLevelGrammar::from_lark(format!("start: {}\n{}\n", calls.join(" | "), rules.join("\n"))))
}

/// Returns a literal of the grammar: quoted text, with marks as tokens in between.
fn literal(text: &str, markers: &[&'static str], tokenizer: &Tokenizer) -> String {
    let tokens: Vec<(&str, u32)> = markers.iter().filter_map(|mark| Some((*mark, tokenizer.id(mark)?))).collect();
    let mut terms = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let found = first_mark(rest, tokens.iter().map(|(mark, _)| *mark));
        let (before, after) = rest.split_at(found.map_or(rest.len(), |(at, _)| at));
        if !before.is_empty() {
            terms.push(Value::from(before).to_string());
        }
        rest = after;
        if let Some((_, mark)) = found {
            terms.extend(tokens.iter().find(|(known, _)| *known == mark).map(|(_, id)| format!("<[{id}]>")));
            rest = &after[mark.len()..];
        }
    }
    terms.join(" ")
}
