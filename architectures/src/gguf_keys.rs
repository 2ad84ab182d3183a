//! Keys of an architecture in GGUF metadata. A key of the file is applied, refused, or reported as
//! unread; a key of an unexpected type is an error.

use std::cell::RefCell;
use std::collections::HashSet;

use formats::Gguf;
use formats::gguf::Value;

use crate::blueprint::check::MAX_LAYERS;
use crate::rope::yarn_magnitude;
use crate::{Error, Rope, RopeScaling};

pub(crate) const SOURCE: &str = "GGUF metadata";

/// Keys that do not change the decoder's output for text, and keys whose numbers follow from the
/// tensors.
const HARMLESS: &[&str] = &[
    // Belongs to a family with another kind of norm.
    "attention.layer_norm_rms_epsilon",
    "full_attention_interval",
    "image_end_token_id",
    "image_start_token_id",
    "image_token_id",
    "leading_dense_block_count",
    "n_deepstack_layers",
    "nextn_predict_layers",
    "rope.dimension_sections",
    "rope.mrope_section",
    "tensor_data_layout",
    "video_end_token_id",
    "video_start_token_id",
    "video_token_id",
    "vocab_size",
];
/// Prefixes of keys of the parts for images and sound.
const OTHER_PARTS: [&str; 3] = ["vision.", "audio.", "sam."];

/// Keys with the prefix of an architecture's name.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) gguf: &'a Gguf<'a>,
    pub(crate) architecture: &'a str,
    /// Keys that were read, with the architecture's name.
    pub(crate) asked: &'a RefCell<HashSet<String>>,
}

/// True if the value of a key means that a feature is unused: 0, false, an empty text or list.
fn is_nothing(gguf: &Gguf<'_>, name: &str) -> bool {
    match gguf.get(name) {
        Some(Value::Bool(flag)) => !flag,
        Some(value) => {
            value.as_f64() == Some(0.0) || value.as_u64() == Some(0) || value.as_str().is_some_and(str::is_empty)
        }
        None => true,
    }
}

pub(crate) fn fail(reason: impl Into<String>) -> Error {
    Error::new(SOURCE, reason)
}

impl<'a> Keys<'a> {
    /// Returns the full name of a key, and records the key as read.
    pub(crate) fn name(self, key: &str) -> String {
        let name = format!("{}.{key}", self.architecture);
        self.asked.borrow_mut().insert(name.clone());
        name
    }

    /// Returns the keys of the architecture that were not read and may change the model's output,
    /// sorted.
    pub(crate) fn unread(self) -> Vec<String> {
        let asked = self.asked.borrow();
        let prefix = format!("{}.", self.architecture);
        let may_change = |name: &str| {
            let Some(own) = name.strip_prefix(&prefix) else { return false };
            let is_harmless = HARMLESS.contains(&own) || OTHER_PARTS.iter().any(|part| own.starts_with(part));
            !is_harmless && !asked.contains(name) && !is_nothing(self.gguf, name)
        };
        let names = self.gguf.metadata.iter().map(|(name, _)| *name);
        let mut unread: Vec<String> = names.filter(|name| may_change(name)).map(str::to_owned).collect();
        unread.sort_unstable();
        unread
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

    /// Returns a number; `None` also if the value is a list.
    pub(crate) fn unsigned_or_list(self, key: &str) -> Result<Option<u64>, Error> {
        if self.gguf.array(&self.name(key)).is_some() { Ok(None) } else { self.unsigned(key) }
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'a str>, Error> {
        let name = self.name(key);
        let read = |value: &Value<'a>| value.as_str().ok_or_else(|| fail(format!("`{name}` is not text")));
        self.gguf.get(&name).map(read).transpose()
    }

    /// Returns a number that a file may state for each layer. 0 marks layers without such a part
    /// and is ignored.
    pub(crate) fn same_in_layers(self, key: &str) -> Result<Option<u64>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return self.unsigned(key) };
        let mut found = None;
        // At most as many items as the largest number of layers: the list may be as long as the
        // file.
        for item in list.iter().take(MAX_LAYERS as usize) {
            let number = item.as_u64().ok_or_else(|| fail(format!("`{name}` has an item that is no whole number")))?;
            match found {
                _ if number == 0 => {}
                Some(other) if other != number => {
                    return Err(fail(format!("`{name}` differs from layer to layer, which cannot be run yet")));
                }
                _ => found = Some(number),
            }
        }
        Ok(found)
    }

    /// Returns a number, or the first number of a list that is not 0.
    pub(crate) fn first_in_layers(self, key: &str) -> Result<Option<u64>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return self.unsigned(key) };
        Ok(list.iter().take(MAX_LAYERS as usize).filter_map(|item| item.as_u64()).find(|number| *number > 0))
    }

    /// Returns a number for each layer, from a list; `None` without such a list.
    pub(crate) fn numbers_of_layers(self, key: &str, layers: usize) -> Result<Option<Vec<u64>>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return Ok(None) };
        let found: Option<Vec<u64>> = list.iter().take(layers).map(|item| item.as_u64()).collect();
        let found = found.filter(|found| found.len() == layers);
        found.map(Some).ok_or_else(|| fail(format!("`{name}` is not a list of numbers for {layers} layers")))
    }

    /// Returns the numbers of a list of at most so many; `None` without such a list.
    pub(crate) fn numbers(self, key: &str, most: usize) -> Result<Option<Vec<u64>>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return Ok(None) };
        let found =
            (list.len() <= most as u64).then(|| list.iter().map(|item| item.as_u64()).collect::<Option<Vec<u64>>>());
        found.flatten().map(Some).ok_or_else(|| fail(format!("`{name}` is not a list of at most {most} numbers")))
    }

    /// Returns a float for each layer, from a list; `None` without such a list.
    pub(crate) fn floats_of_layers(self, key: &str, layers: usize) -> Result<Option<Vec<f64>>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return Ok(None) };
        let found: Option<Vec<f64>> = list.iter().take(layers).map(|item| item.as_f64()).collect();
        let found = found.filter(|found| found.len() == layers);
        found.map(Some).ok_or_else(|| fail(format!("`{name}` is not a list of numbers for {layers} layers")))
    }

    /// Returns for each layer whether a list of numbers or booleans has a nonzero value for it;
    /// `None` without such a list.
    pub(crate) fn layers_with(self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, Error> {
        let name = self.name(key);
        let Some(list) = self.gguf.array(&name) else { return Ok(None) };
        let has = |item: Value<'_>| match item {
            Value::Bool(flag) => Some(flag),
            other => other.as_u64().map(|number| number > 0),
        };
        let found: Option<Vec<bool>> = list.iter().take(layers).map(has).collect();
        let found = found.filter(|found| found.len() == layers);
        found.map(Some).ok_or_else(|| fail(format!("`{name}` is not a list for {layers} layers")))
    }

    /// Returns for each layer whether it slides: from a list of booleans, or from the number `n` if
    /// every `n`-th layer does not slide. 0 counts as missing.
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
            // At most as many items as there are layers: the list may be as long as the file.
            let flags = flags.take(layers as usize).collect::<Result<Vec<bool>, _>>()?;
            if flags.len() as u64 != layers || list.len() != layers {
                return Err(fail(format!("`{name}` has {} items for {layers} layers", list.len())));
            }
            return Ok(Some(flags));
        }
        Ok(self.unsigned(KEY)?.filter(|n| *n > 0).map(|n| all_but_every(n, layers)))
    }

    /// Returns the labels of a scoring head's outputs.
    pub(crate) fn labels(self) -> Vec<&'a str> {
        let labels = self.gguf.array(&self.name("classifier.output_labels"));
        labels.iter().flat_map(formats::gguf::Array::iter).map(|label| label.as_str().unwrap_or_default()).collect()
    }

    /// Returns the `RoPE` of all elements of a head, without divisors that are tensors of the file.
    pub(crate) fn rope(self) -> Result<Rope, Error> {
        let theta = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        let (scaling, magnitude) = self.scaling()?;
        let factor = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(Rope::plain(theta).scaled(scaling, magnitude * factor))
    }

    /// Returns the context of the first training, in tokens.
    pub(crate) fn original_context(self) -> Result<u64, Error> {
        match self.unsigned("rope.scaling.original_context_length")?.filter(|context| *context > 0) {
            Some(context) => Ok(context),
            None => self.required("context_length"),
        }
    }

    /// Returns the scaling of frequencies, with llama.cpp's precedence: a factor without a type
    /// means linear scaling, and the older key applies if there is no factor.
    fn scaling(self) -> Result<(RopeScaling, f64), Error> {
        let number = |key: &str| self.float(&format!("rope.{key}"));
        let factor = match number("scaling.factor")? {
            Some(factor) => Some(factor),
            None => number("scale_linear")?,
        };
        let factor = factor.filter(|factor| *factor > 0.0);
        let linear = |factor| (RopeScaling::Linear { factor }, 1.0);
        let none = (RopeScaling::None, 1.0);
        match self.typed("rope.scaling.type", "text", Value::as_str)? {
            // Llama 3's scaling is in the file as a tensor of divisors, `rope_freqs.weight`, and
            // has no type. The same is true of Phi 3's long models.
            None => Ok(factor.filter(|factor| (factor - 1.0).abs() > f64::EPSILON).map_or(none, linear)),
            Some("none" | "longrope") => Ok(none),
            Some("linear") => Ok(factor.map_or(none, linear)),
            Some("yarn") => self.yarn(factor.unwrap_or(1.0)),
            Some(other) => {
                Err(fail(format!("rope scaling `{other}` cannot be run yet, expected none, linear, yarn or longrope")))
            }
        }
    }

    /// Returns `YaRN` scaling. llama.cpp always rounds the ends of the ramp.
    pub(crate) fn yarn(self, factor: f64) -> Result<(RopeScaling, f64), Error> {
        let number = |key: &str| self.float(&format!("rope.scaling.yarn_{key}"));
        match number("ext_factor")? {
            // A negative value means that the scaling type decides.
            Some(0.0) => return Ok((RopeScaling::Linear { factor }, 1.0)),
            Some(share) if share > 0.0 && (share - 1.0).abs() > f64::EPSILON => {
                return Err(fail(format!("`rope.scaling.yarn_ext_factor` is {share}, expected 0 or 1")));
            }
            _ => {}
        }
        let magnitude = match (number("attn_factor")?, self.yarn_log_multiplier()?) {
            (Some(magnitude), _) => magnitude,
            (None, Some(weight)) => yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, weight),
            (None, None) => yarn_magnitude(factor, 1.0),
        };
        let scaling = RopeScaling::Yarn {
            factor,
            beta_fast: number("beta_fast")?.unwrap_or(32.0),
            beta_slow: number("beta_slow")?.unwrap_or(1.0),
            original_context: self.original_context()?,
            truncate: true,
        };
        Ok((scaling, magnitude))
    }

    /// Returns the weight of the growth of attention with `YaRN`; 0 counts as missing.
    pub(crate) fn yarn_log_multiplier(self) -> Result<Option<f64>, Error> {
        Ok(self.float("rope.scaling.yarn_log_multiplier")?.filter(|weight| *weight != 0.0))
    }
}

/// Returns for each layer whether it is of a kind that all layers have except every `step`-th one.
pub(crate) fn all_but_every(step: u64, layers: u64) -> Vec<bool> {
    (1..=layers.min(MAX_LAYERS)).map(|layer| !layer.is_multiple_of(step)).collect()
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
            let asked = RefCell::default();
            let own = Keys { gguf: &gguf, architecture: "llama", asked: &asked };
            assert_eq!(own.rope().expect("a scaling").scaling, expected, "{keys:?}");
        }
    }

    #[test]
    fn yarn_is_llama_cpp_s() {
        let key = |name: &str, value: OwnedValue| (format!("llama.{name}"), value);
        let base = [
            key("context_length", 4096u32.into()),
            key("rope.scaling.type", "yarn".into()),
            key("rope.scaling.factor", 4.0f32.into()),
        ];
        let read = |more: &[(String, OwnedValue)]| {
            let header = write_header(&[&base, more].concat(), &[]).expect("a header").bytes;
            Keys { gguf: &Gguf::parse(&header).expect("it is read"), architecture: "llama", asked: &RefCell::default() }
                .rope()
        };
        let plain = read(&[]).expect("a scaling");
        let RopeScaling::Yarn { original_context, truncate, .. } = plain.scaling else { panic!("{plain:?}") };
        assert_eq!((original_context, truncate), (4096, true), "what the file leaves out");
        assert!((plain.magnitude - yarn_magnitude(4.0, 1.0)).abs() < 1e-12);
        for (name, value, magnitude) in [
            ("rope.scaling.yarn_attn_factor", 1.5f32, 1.5),
            ("rope.scaling.attn_factor", 0.5, yarn_magnitude(4.0, 1.0) / 2.0),
            ("rope.scaling.yarn_log_multiplier", 1.0, 1.0),
        ] {
            let own = read(&[key(name, value.into())]).expect("a scaling");
            assert!((own.magnitude - magnitude).abs() < 1e-12, "{name}: {}", own.magnitude);
        }
        let half = read(&[key("rope.scaling.yarn_ext_factor", 0.5f32.into())]).expect_err("half").to_string();
        assert!(half.contains("is 0.5, expected 0 or 1"), "{half}");
    }
}
