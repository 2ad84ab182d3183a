//! The keys of an architecture in GGUF metadata. A key that stands in the file is honoured or refused, never passed over
//! because its type is another.

use formats::Gguf;
use formats::gguf::Value;

use crate::{Error, RopeScaling};

pub(crate) const SOURCE: &str = "GGUF metadata";

/// The keys that begin with an architecture's name.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf<'a>,
    pub(crate) architecture: &'a str,
}

pub(crate) fn fail(reason: impl Into<String>) -> Error {
    Error::new(SOURCE, reason)
}

impl<'a> Keys<'a> {
    fn name(self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn typed<T>(self, key: &str, what: &str, read: impl Fn(&Value<'a>) -> Option<T>) -> Result<Option<T>, Error> {
        let name = self.name(key);
        let read = |value: &Value<'a>| read(value).ok_or_else(|| fail(format!("`{name}` is not {what}")));
        self.gguf.get(&name).map(read).transpose()
    }

    pub(crate) fn unsigned(self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    pub(crate) fn required(self, key: &str) -> Result<u64, Error> {
        self.unsigned(key)?.ok_or_else(|| fail(format!("`{}` is missing", self.name(key))))
    }

    pub(crate) fn float(self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn flag(self, key: &str) -> Result<Option<bool>, Error> {
        let read = |value: &Value<'a>| if let Value::Bool(flag) = value { Some(*flag) } else { None };
        self.typed(key, "true or false", read)
    }

    /// Which layers slide: a list of truth values, or the number `n` for which every `n`-th layer does not. 0 says nothing.
    pub(crate) fn sliding_layers(self, layers: u64) -> Result<Option<Vec<bool>>, Error> {
        const KEY: &str = "attention.sliding_window_pattern";
        let name = self.name(KEY);
        if let Some(list) = self.gguf.array(&name) {
            let flags = list.iter().map(|item| match item {
                Value::Bool(flag) => Ok(flag),
                other => match other.as_u64() {
                    Some(number @ 0..=1) => Ok(number == 1),
                    _ => Err(fail(format!("`{name}` has an item that is not true or false"))),
                },
            });
            // No more than the layers there are: the list may be as long as the file.
            let flags = flags.take(layers as usize).collect::<Result<Vec<bool>, _>>()?;
            if flags.len() as u64 != layers || list.len() != layers {
                return Err(fail(format!("`{name}` has {} items for {layers} layers", list.len())));
            }
            return Ok(Some(flags));
        }
        Ok(self.unsigned(KEY)?.filter(|n| *n > 0).map(|n| crate::dense::all_but_every(n, layers)))
    }

    /// How frequencies are scaled, in llama.cpp's order: a factor without a type means linear scaling, and the older key
    /// counts where there is no factor.
    pub(crate) fn scaling(self) -> Result<RopeScaling, Error> {
        let number = |key: &str| self.float(&format!("rope.{key}"));
        let factor = match number("scaling.factor")? {
            Some(factor) => Some(factor),
            None => number("scale_linear")?,
        };
        let factor = factor.filter(|factor| *factor > 0.0);
        if self.float("rope.scaling.attn_factor")?.is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON) {
            return Err(fail("a factor for rotated heads (`rope.scaling.attn_factor`) cannot be run yet"));
        }
        match self.typed("rope.scaling.type", "text", Value::as_str)? {
            // Llama 3's scaling is in the file as a tensor of divisors, `rope_freqs.weight`, and has no type.
            None => Ok(match factor.filter(|factor| (factor - 1.0).abs() > f64::EPSILON) {
                Some(factor) => RopeScaling::Linear { factor },
                None => RopeScaling::None,
            }),
            Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor })),
            Some(other) => Err(fail(format!("rope scaling `{other}` cannot be run yet, expected none or linear"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use formats::gguf::{OwnedValue, write_header};

    use super::*;

    #[test]
    fn a_factor_without_a_type_is_linear() {
        let key = |name: &str, value: OwnedValue| (format!("llama.rope.{name}"), value);
        let (factor, older) = (key("scaling.factor", 4.0f32.into()), key("scale_linear", 2.0f32.into()));
        let (one, none) = (key("scaling.factor", 1.0f32.into()), key("scaling.type", "none".into()));
        let linear = |factor| RopeScaling::Linear { factor };
        for (keys, expected) in [
            (vec![], RopeScaling::None),
            (vec![factor.clone(), older.clone()], linear(4.0)),
            (vec![older.clone()], linear(2.0)),
            (vec![one, older.clone()], RopeScaling::None),
            (vec![none, older, factor], RopeScaling::None),
        ] {
            let header = write_header(&keys, &[]).expect("a header").bytes;
            let gguf = Gguf::parse(&header).expect("it is read");
            let own = Keys { gguf: &gguf, architecture: "llama" };
            assert_eq!(own.scaling().expect("a scaling"), expected, "{keys:?}");
        }
    }
}
