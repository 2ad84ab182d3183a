//! Built-in rules of each type, parsed once.

use std::sync::LazyLock;

use formats::Encoding;
use serde::Deserialize;

use super::condition::Condition;
use super::part::TensorRole;
use super::type_names;

/// Choice of a rule for the tensors to which it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleChoice {
    /// The tensor keeps its precision.
    Keep,
    /// The requested type.
    Base,
    /// The 8-bit type of the same family.
    Eight,
    /// A fixed type, regardless of the requested type.
    Type(Encoding),
}

/// Rule that applies if the tensor has one of the parts, or the list of parts is empty, and all
/// conditions hold.
#[derive(Clone, Debug)]
pub(super) struct PolicyRule {
    pub(super) parts: Vec<TensorRole>,
    pub(super) when: Vec<Condition>,
    pub(super) choice: RuleChoice,
}

/// Mix of llama.cpp, such as `q4_k_m`.
#[derive(Debug)]
pub(super) struct Mix {
    pub(super) name: String,
    pub(super) base: Encoding,
    pub(super) rules: Vec<PolicyRule>,
}

#[derive(Debug)]
pub(super) struct Tables {
    pub(super) mlx: Vec<PolicyRule>,
    pub(super) ggml: Vec<PolicyRule>,
    pub(super) plain: Vec<PolicyRule>,
    pub(super) mixes: Vec<Mix>,
}

/// Returns the tables.
pub(super) fn tables() -> &'static Tables {
    static TABLES: LazyLock<Tables> =
        LazyLock::new(|| read().expect("invariant: a test reads the tables, which are part of the program"));
    &TABLES
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRules {
    rule: Vec<WireRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireMixes {
    first: Vec<WireRule>,
    mix: Vec<WireMix>,
    last: Vec<WireRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireMix {
    name: String,
    base: String,
    rules: Vec<WireRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRule {
    #[serde(default)]
    parts: Vec<TensorRole>,
    #[serde(default)]
    when: Vec<Condition>,
    #[serde(rename = "type")]
    choice: String,
}

fn read() -> Result<Tables, String> {
    Ok(Tables {
        mlx: rules(include_str!("tables/mlx.toml"))?,
        ggml: rules(include_str!("tables/ggml.toml"))?,
        plain: rules(include_str!("tables/plain.toml"))?,
        mixes: mixes(include_str!("tables/mixes.toml"))?,
    })
}

fn parse<T: for<'de> Deserialize<'de>>(table: &str) -> Result<T, String> {
    toml::from_str(table).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn rules(table: &str) -> Result<Vec<PolicyRule>, String> {
    parse::<WireRules>(table)?.rule.iter().map(rule).collect()
}

fn mixes(table: &str) -> Result<Vec<Mix>, String> {
    let wire: WireMixes = parse(table)?;
    let mix = |mix: &WireMix| {
        let all = wire.first.iter().chain(&mix.rules).chain(&wire.last);
        let base = type_names::encoding(&mix.base).ok_or_else(|| format!("`{}` is not a type", mix.base))?;
        Ok(Mix { name: mix.name.clone(), base, rules: all.map(rule).collect::<Result<_, String>>()? })
    };
    wire.mix.iter().map(mix).collect()
}

fn rule(wire: &WireRule) -> Result<PolicyRule, String> {
    let choice = match wire.choice.as_str() {
        "keep" => RuleChoice::Keep,
        "base" => RuleChoice::Base,
        "eight" => RuleChoice::Eight,
        name => RuleChoice::Type(type_names::encoding(name).ok_or_else(|| format!("`{name}` is not a type"))?),
    };
    Ok(PolicyRule { parts: wire.parts.clone(), when: wire.when.clone(), choice })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_can_be_read_and_end_with_a_rule_for_all() {
        let tables = read().expect("the tables are TOML");
        let mixes = tables.mixes.iter().map(|mix| &mix.rules);
        for rules in mixes.chain([&tables.mlx, &tables.ggml, &tables.plain]) {
            let last = rules.last().expect("a rule");
            assert!(last.parts.is_empty() && last.when.is_empty(), "{last:?}");
        }
        assert_eq!(tables.mixes.len(), 8);
    }
}
