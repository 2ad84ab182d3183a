//! `keep_alive`: a number of seconds or a duration in Go's syntax.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Pattern of the texts that [`KeepAliveSpec::parse`] accepts.
const DURATION: &str = r"^[-+]?[0-9]+(\.[0-9]+)?((ns|us|µs|ms|s|m|h)([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*)?$";

/// How long a model stays loaded after a request. `None` means forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveSpec(pub Option<Duration>);

impl KeepAliveSpec {
    /// Parses `300`, `-1`, `5m`, `1h30m`, `1.5s`, `250ms`, …; a negative duration means forever.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad =
            || format!("`{text}` is not a duration; expected seconds, or numbers with units such as 10m or 1h30m");
        if let Ok(seconds) = text.parse::<f64>() {
            return Self::from_seconds(seconds).ok_or_else(bad);
        }
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest.is_empty() {
            return Err(bad());
        }
        let mut total = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
            let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
            total += number
                * match &rest[..letters] {
                    "ns" => 1e-9,
                    "us" | "µs" => 1e-6,
                    "ms" => 1e-3,
                    "s" => 1.0,
                    "m" => 60.0,
                    "h" => 3600.0,
                    _ => return Err(bad()),
                };
            rest = &rest[letters..];
        }
        Self::from_seconds(if negative { -total } else { total }).ok_or_else(bad)
    }

    fn from_seconds(seconds: f64) -> Option<Self> {
        if seconds < 0.0 {
            return Some(Self(None));
        }
        // A duration that overflows counts as forever.
        seconds.is_finite().then(|| Self(Duration::try_from_secs_f64(seconds).ok()))
    }
}

impl<'de> Deserialize<'de> for KeepAliveSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Self::parse(&text).map_err(de::Error::custom),
            serde_json::Value::Number(number) => {
                let seconds = number.as_f64().and_then(Self::from_seconds);
                seconds.ok_or_else(|| de::Error::custom("keep_alive is out of range"))
            }
            other => Err(de::Error::custom(format!("keep_alive is {other}, expected a number or a duration"))),
        }
    }
}

impl JsonSchema for KeepAliveSpec {
    fn schema_name() -> Cow<'static, str> {
        "KeepAlive".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "How long a model stays loaded: seconds, or a duration such as `1h30m`; negative is forever.",
            "anyOf": [
                { "type": "number" },
                { "type": "string", "pattern": DURATION },
            ],
        })
    }
}

impl Serialize for KeepAliveSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(time) => serializer.serialize_f64(time.as_secs_f64()),
            None => serializer.serialize_i64(-1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_durations() {
        for (text, expect) in [
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1_500)),
            ("250ms", Some(250)),
            ("0", Some(0)),
            ("300", Some(300_000)),
            ("-1", None),
            ("-1m", None),
        ] {
            assert_eq!(KeepAliveSpec::parse(text), Ok(KeepAliveSpec(expect.map(Duration::from_millis))), "{text}");
        }
        for bad in ["", "m", "5", "5x", "1m2", "-", "nan", "inf", "5 m"] {
            assert!(bad == "5" || KeepAliveSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
