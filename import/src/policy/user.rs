//! Users' policies: TOML files with rules that take precedence over the built-in ones.
//!
//! ```toml
//! [[rule]]
//! match = 'layers\.0\..*down_proj'
//! type = "q6_k"       # any type except a mix; `keep`: unchanged; `drop`: removed from the model
//! ```
//!
//! The first rule whose pattern matches a part of a tensor's canonical name applies.

use formats::Encoding;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use toml::Spanned;

use super::type_names;
use crate::Error;

/// Largest number of rules. Policies have few; a longer file is not a policy.
const MAX_RULES: usize = 512;
/// Largest size of a compiled regular expression, in bytes.
const MAX_PATTERN: usize = 1 << 18;

/// Choice of a user's rule for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserChoice {
    Keep,
    Drop,
    Type(Encoding),
}

/// A rule of a policy file.
#[derive(Clone, Debug)]
pub struct UserRule {
    pub(super) pattern: Regex,
    pub(super) choice: UserChoice,
    /// Line number, counted from 1.
    line: usize,
}

impl UserRule {
    /// Returns line and pattern, for messages.
    pub fn describe(&self) -> String {
        format!("line {}: `{}`", self.line, self.pattern)
    }
}

/// Parsed policy file.
#[derive(Clone, Debug, Default)]
pub struct UserPolicy {
    pub(super) rules: Vec<UserRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(default)]
    rule: Vec<Spanned<WireRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRule {
    r#match: Spanned<String>,
    r#type: Spanned<String>,
}

impl UserPolicy {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// The text is not a valid policy; the error names the line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wire: Wire = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line(text, span.start));
            Error::Source(format!("the policy's line {line}: {}", error.message()))
        })?;
        if wire.rule.len() > MAX_RULES {
            let count = wire.rule.len();
            return Err(Error::Source(format!("the policy has {count} rules, expected at most {MAX_RULES}")));
        }
        let rules = wire.rule.into_iter().map(|rule| read(text, rule.as_ref()));
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }
}

fn read(text: &str, wire: &WireRule) -> Result<UserRule, Error> {
    let at = |span: std::ops::Range<usize>, reason: String| {
        Error::Source(format!("the policy's line {}: {reason}", line(text, span.start)))
    };
    let span = wire.r#match.span();
    let pattern = RegexBuilder::new(wire.r#match.get_ref())
        .size_limit(MAX_PATTERN)
        .build()
        .map_err(|error| at(span.clone(), error.to_string()))?;
    let name = wire.r#type.get_ref().trim();
    let choice = match name.to_ascii_lowercase().as_str() {
        "keep" => UserChoice::Keep,
        "drop" => UserChoice::Drop,
        lower => UserChoice::Type(type_names::encoding(lower).ok_or_else(|| {
            let known = "`keep`, `drop` or a type of one tensor such as `q6_k`, `int4:64` or `mxfp8`";
            at(wire.r#type.span(), format!("the type `{name}` is not known, expected {known}"))
        })?),
    };
    Ok(UserRule { pattern, choice, line: line(text, span.start) })
}

/// Returns the line of the byte at `at`, counted from 1.
fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rules_in_their_order() {
        let text = "# mine\n[[rule]]\nmatch = 'v_proj'\ntype = \"Q6_K\"\n\n[[rule]]\ntype='drop'\nmatch='lm_head'\n";
        let policy = UserPolicy::parse(text).expect("a policy");
        let rules: Vec<_> = policy.rules.iter().map(|rule| (rule.describe(), rule.choice)).collect();
        let q6_k = UserChoice::Type(Encoding::Blocks(formats::GgmlType::Q6_K));
        assert_eq!(rules, [("line 3: `v_proj`".to_owned(), q6_k), ("line 8: `lm_head`".to_owned(), UserChoice::Drop)]);
        assert!(UserPolicy::parse("").expect("no rules").rules.is_empty());
    }

    #[test]
    fn says_which_line_is_wrong() {
        for (text, expect) in [
            ("[[rule]]\nmatch = 'a'\n", "line 1: missing field `type`"),
            ("[[rule]]\nmatch = '('\ntype = 'keep'", "line 2: regex parse error"),
            ("[[rule]]\nmatch = 'a'\ntype = 'q4_k_m'", "line 3: the type `q4_k_m` is not known"),
            ("[[rule]]\nmatch = 'a'\ntype = 'keep'\nwhen = 'x'", "line 4: unknown field `when`"),
            ("[[rules]]\n", "line 1: unknown field `rules`"),
            ("[[rule]]\nmatch = 3\ntype = 'keep'", "line 2: invalid type"),
            ("a = \n", "line 1"),
        ] {
            let error = UserPolicy::parse(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{error} should say {expect}");
        }
    }
}
