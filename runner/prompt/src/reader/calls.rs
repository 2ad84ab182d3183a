//! The ways in which models write tool calls.

mod braces;
mod invoke;
mod json;
mod python;
mod sections;
mod tagged;

pub(super) use python::literal;

use super::parts::Call;
use super::tools::Tools;

/// How what stands between the marks of a call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// `{"name": …, "arguments": {…}}`, several of them, or an array; also `NAME[ARGS]{…}`, as Mistral writes.
    Json,
    /// The same where nothing marks it: the name must be that of a tool, and there must be arguments.
    Unmarked,
    /// `NAME(KEY=VALUE, …)`, or a list of such.
    Python,
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>`, or `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
    Tagged,
    /// `call:NAME{KEY:VALUE, …}` with this around texts: Gemma.
    Braces { quote: &'static str },
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, with this before the names of tags.
    Invoke { prefix: &'static str },
    /// What begins a call, stands between name and arguments, and ends the call: `DeepSeek` and Kimi.
    Sections { begin: &'static str, separator: &'static str, end: &'static str },
}

impl Body {
    /// Whether a closing mark may stand within a string of it.
    pub(super) fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Unmarked)
    }

    /// The calls, and what follows them. Nothing where it is not written as it should be.
    pub(super) fn read<'b>(self, body: &'b str, tools: &Tools) -> Option<(Vec<Call>, &'b str)> {
        let (calls, rest) = match self {
            Self::Json => json::read(body).or_else(|| Some((python::read(body)?, "")))?,
            Self::Unmarked => json::unmarked(body, tools)?,
            Self::Python => (python::read(body).or_else(|| Some(json::read(body)?.0))?, ""),
            // As a call is written that is asked for, and some models write it all the same.
            Self::Braces { .. } | Self::Invoke { .. } | Self::Tagged if body.trim_start().starts_with(['{', '[']) => {
                json::read(body)?
            }
            Self::Braces { quote } => (braces::read(body, quote)?, ""),
            Self::Invoke { prefix } => (invoke::read(body, prefix, tools)?, ""),
            Self::Tagged => (tagged::read(body, tools)?, ""),
            Self::Sections { begin, separator, end } => (sections::read(body, begin, separator, end)?, ""),
        };
        (!calls.is_empty()).then_some((calls, rest))
    }
}

/// Whether this can be the name of a function: one word that is not too long.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && text.chars().all(|c| c.is_alphanumeric() || "_-.:/".contains(c))
}
