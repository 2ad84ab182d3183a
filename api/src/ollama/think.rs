//! `think`: whether and how much a model thinks before it answers.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// Whether and how much to think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Think {
    /// Yes or no.
    Flag(bool),
    /// One of [`LEVELS`].
    Level(String),
}

/// Amounts of thinking.
const LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

impl Think {
    /// Returns true if the request asks for thinking.
    pub fn is_wanted(&self) -> bool {
        *self != Self::Flag(false)
    }
}

impl JsonSchema for Think {
    fn schema_name() -> Cow<'static, str> {
        "Think".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether, or how much, to think.",
            "anyOf": [{ "type": "boolean" }, { "type": "string", "enum": LEVELS }],
        })
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(flag) => Ok(Self::Flag(flag)),
            Value::String(level) if LEVELS.contains(&level.as_str()) => Ok(Self::Level(level)),
            other => Err(de::Error::custom(format!(
                "invalid think value: {other} (must be \"high\", \"medium\", \"low\", \"max\", true, or false)"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_or_a_level() {
        for (text, expect) in [
            ("true", Some(Think::Flag(true))),
            ("false", Some(Think::Flag(false))),
            ("\"low\"", Some(Think::Level("low".to_owned()))),
            ("\"max\"", Some(Think::Level("max".to_owned()))),
            ("\"much\"", None),
            ("1", None),
        ] {
            let read: Result<Think, _> = serde_json::from_str(text);
            assert_eq!(read.as_ref().ok(), expect.as_ref(), "{text}: {read:?}");
        }
        assert!(!Think::Flag(false).is_wanted() && Think::Level("low".to_owned()).is_wanted());
    }
}
