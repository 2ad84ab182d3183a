//! The syntaxes of tool calls.

mod braces;
mod invoke;
mod json;
mod python;
mod sections;
mod tagged;

pub(super) use python::literal;

use super::parts::Call;
use super::tools::Tools;

/// Syntax of the text between the marks of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// `{"name": …, "arguments": {…}}`, several of them, or an array; also Mistral's
    /// `NAME[ARGS]{…}`.
    Json,
    /// The same, or `{NAME: {…}}`.
    Named,
    /// The same as [`Json`](Self::Json) without marks: the name must be that of a tool, and there
    /// must be arguments.
    Unmarked,
    /// `NAME(KEY=VALUE, …)`, or a list of such calls.
    Python,
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>`, or
    /// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
    Tagged,
    /// `call:NAME{KEY:VALUE, …}` with `quote` around texts: Gemma.
    Braces { quote: &'static str },
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, with `prefix` before
    /// the names of tags.
    Invoke { prefix: &'static str },
    /// Marks that begin a call, separate name and arguments, and end the call: `DeepSeek` and Kimi.
    Sections { begin: &'static str, separator: &'static str, end: &'static str },
}

impl Body {
    /// Whether a closing mark can occur within a string of the body.
    pub(super) fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Named | Self::Unmarked)
    }

    /// Parses the calls and returns them with the remaining text; `None` if the body is malformed.
    pub(super) fn read<'b>(self, body: &'b str, tools: &Tools) -> Option<(Vec<Call>, &'b str)> {
        let (calls, rest) = match self {
            Self::Json => json::read(body).or_else(|| Some((python::read(body)?, "")))?,
            Self::Named => json::read(body).or_else(|| json::named(body))?,
            Self::Unmarked => json::unmarked(body, tools)?,
            Self::Python => (python::read(body).or_else(|| Some(json::read(body)?.0))?, ""),
            // The syntax of forced calls, which some models also use otherwise.
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

/// Whether a text can be the name of a function: one word of limited length.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && text.chars().all(|c| c.is_alphanumeric() || "_-.:/".contains(c))
}
