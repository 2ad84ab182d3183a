//! Readers of `config.json`, in the classic layout (`rope_theta`, `rope_scaling`) and the newer one
//! (`rope_parameters`). Errors name the invalid key. `null` counts as missing, except for
//! [`Config::is_null`].

use serde_json::{Map, Value};

use crate::blueprint::Activation;
use crate::keys_read::KeysRead;
use crate::rope::yarn_magnitude;
use crate::{Error, Rope, RopeScaling};

pub(crate) const SOURCE: &str = "config.json";

/// Object of a config: the root or a nested one. Every key that a family reads is recorded.
#[derive(Clone, Copy)]
pub(crate) struct Config<'a> {
    map: &'a Map<String, Value>,
    read: &'a KeysRead,
    /// Usual keys, each with the key that this config has for it.
    other_keys: &'static [(&'static str, &'static str)],
    /// Numbers for missing keys.
    defaults: &'static [(&'static str, f64)],
    /// Key that counts as missing.
    hidden_key: Option<&'static str>,
}

pub(crate) fn fail(reason: impl Into<String>) -> Error {
    Error::new(SOURCE, reason)
}

impl<'a> Config<'a> {
    pub(crate) const fn new(map: &'a Map<String, Value>, read: &'a KeysRead) -> Self {
        Self { map, read, other_keys: &[], defaults: &[], hidden_key: None }
    }

    /// Returns the config with other keys for some properties, `(usual key, other key)`. The other
    /// key is read if the usual one is missing.
    pub(crate) const fn with_other_keys(self, other_keys: &'static [(&'static str, &'static str)]) -> Self {
        Self { other_keys, ..self }
    }

    /// Returns the config with the numbers that the model's class has for missing keys. They come
    /// before the defaults of functions that several families use.
    pub(crate) const fn with_defaults(self, defaults: &'static [(&'static str, f64)]) -> Self {
        Self { defaults, ..self }
    }

    /// Returns the number that the model's class has for a key, if the config lacks the key.
    fn default(self, key: &str) -> Option<f64> {
        let of_class = || self.defaults.iter().find(|(own, _)| *own == key).map(|(_, number)| *number);
        if self.map.contains_key(self.own_key(key)) { None } else { of_class() }
    }

    /// Returns the key of a property in this config.
    fn own_key(self, key: &str) -> &str {
        let other = || self.other_keys.iter().find(|(usual, other)| *usual == key && self.map.contains_key(*other));
        if self.map.contains_key(key) { key } else { other().map_or(key, |(_, other)| other) }
    }

    pub(crate) const fn map(self) -> &'a Map<String, Value> {
        self.map
    }

    /// Returns the config without a key, which the family reads in another form than others.
    pub(crate) const fn without(self, key: &'static str) -> Self {
        Self { hidden_key: Some(key), ..self }
    }

    /// Records a property as read, by all of its keys: the other key does not count beside the
    /// usual one.
    fn note(self, key: &str) {
        self.read.note(self.map, key);
        for (_, other) in self.other_keys.iter().filter(|(usual, _)| *usual == key) {
            self.read.note(self.map, other);
        }
    }

    pub(crate) fn value(self, key: &str) -> Option<&'a Value> {
        if self.hidden_key == Some(key) {
            return None;
        }
        self.note(key);
        let key = self.own_key(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// True if the key is present with the value `null`, which sometimes means something else than
    /// the default.
    pub(crate) fn is_null(self, key: &str) -> bool {
        self.note(key);
        self.map.get(self.own_key(key)).is_some_and(Value::is_null)
    }

    pub(crate) fn text(self, key: &str) -> Option<&'a str> {
        self.value(key)?.as_str()
    }

    fn typed<T>(self, key: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, Error> {
        let read = |value| read(value).ok_or_else(|| fail(format!("`{key}` is {value}, expected {what}")));
        self.value(key).map(read).transpose()
    }

    pub(crate) fn unsigned(self, key: &str) -> Result<Option<u64>, Error> {
        let default = || self.default(key).map(|number| share(1, number));
        Ok(self.typed(key, "a whole number", Value::as_u64)?.or_else(default))
    }

    /// Reads a size for which some configs say `auto`, which counts as missing.
    pub(crate) fn unsigned_or_auto(self, key: &str) -> Result<Option<u64>, Error> {
        if self.text(key) == Some("auto") { Ok(None) } else { self.unsigned(key) }
    }

    pub(crate) fn required(self, key: &str) -> Result<u64, Error> {
        self.unsigned(key)?.ok_or_else(|| fail(format!("`{key}` is missing")))
    }

    pub(crate) fn float(self, key: &str) -> Result<Option<f64>, Error> {
        Ok(self.typed(key, "a number", Value::as_f64)?.or_else(|| self.default(key)))
    }

    pub(crate) fn flag(self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn object(self, key: &str) -> Result<Option<Self>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| fail(format!("`{key}` is not an object")))?;
        self.read.open(map);
        Ok(Some(Self::new(map, self.read)))
    }

    pub(crate) fn list(self, key: &str) -> Result<Option<&'a [Value]>, Error> {
        let read =
            |value: &'a Value| value.as_array().map(Vec::as_slice).ok_or_else(|| fail(format!("`{key}` is no list")));
        self.value(key).map(read).transpose()
    }

    /// Returns the unsigned integers of the list under a key.
    pub(crate) fn whole_numbers(self, key: &str) -> Result<Option<Vec<u64>>, Error> {
        let number =
            |value: &Value| value.as_u64().ok_or_else(|| fail(format!("`{key}` has {value}, expected whole numbers")));
        self.list(key)?.map(|list| list.iter().map(number).collect()).transpose()
    }

    /// Returns the numbers of pairs of a head that read the time, the row and the column of a
    /// token, for models whose tokens have several positions.
    pub(crate) fn rope_sections(self) -> Result<Option<[u64; 3]>, Error> {
        let parameters = self.object("rope_parameters")?.or(self.object("rope_scaling")?);
        let Some(sections) = parameters.map(|own| own.whole_numbers("mrope_section")).transpose()?.flatten() else {
            return Ok(None);
        };
        let count = sections.len();
        let sections = sections.try_into();
        sections.map(Some).map_err(|_| fail(format!("`mrope_section` has {count} numbers, expected 3")))
    }

    /// Returns the major version of transformers that saved the config, if it says so.
    pub(crate) fn saved_by(self) -> Result<Option<u64>, Error> {
        let Some(version) = self.text("transformers_version") else { return Ok(None) };
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        major.map(Some).ok_or_else(|| fail(format!("`transformers_version` is `{version}`, expected numbers")))
    }

    /// Reads an activation.
    pub(crate) fn activation(self, key: &str, default: Activation) -> Result<Activation, Error> {
        let Some(name) = self.text(key) else { return Ok(default) };
        Activation::parse(name).ok_or_else(|| {
            fail(format!("activation `{name}` is not supported, expected silu, gelu or gelu_pytorch_tanh"))
        })
    }

    /// Reads a positive step between layers of the same kind.
    pub(crate) fn step(self, key: &str, default: u64) -> Result<u64, Error> {
        match self.unsigned(key)?.unwrap_or(default) {
            0 => Err(fail(format!("`{key}` is 0, expected at least 1"))),
            step => Ok(step),
        }
    }

    /// Returns for each layer whether `layer_types` lists it as sliding; `None` without that list.
    pub(crate) fn sliding_layers(self, layers: u64) -> Result<Option<Vec<bool>>, Error> {
        self.layers_of_type("sliding_attention", layers)
    }

    /// Returns for each layer whether `layer_types` gives it the type `expected`; `None` without
    /// that list. All other layers must have full attention.
    pub(crate) fn layers_of_type(self, expected: &str, layers: u64) -> Result<Option<Vec<bool>>, Error> {
        let is_so = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some(other) if other == expected => Ok(true),
            _ => Err(fail(format!("layer type {kind} is not supported, expected full_attention or {expected}"))),
        };
        self.per_layer("layer_types", layers, is_so)
    }

    /// Returns what `parse` makes of each item of a list with one item for each layer; `None`
    /// without that list.
    pub(crate) fn per_layer<T>(
        self,
        key: &str,
        layers: u64,
        parse: impl Fn(&Value) -> Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        if items.len() as u64 != layers {
            return Err(fail(format!("`{key}` has {} items for {layers} layers", items.len())));
        }
        items.iter().map(parse).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Returns for each layer whether a list of types gives it attention and not a recurrent mixer;
    /// `None` without that list. Older configs have other names for both.
    pub(crate) fn attention_layers(self, key: &str, layers: u64) -> Result<Option<Vec<bool>>, Error> {
        let attends = |kind: &Value| match kind.as_str() {
            Some("attention" | "full_attention") => Ok(true),
            Some("mamba" | "linear_attention") => Ok(false),
            _ => Err(fail(format!("layer type {kind} is not supported, expected full_attention or linear_attention"))),
        };
        self.per_layer(key, layers, attends)
    }

    /// Returns the `RoPE` of layers of a type. `rope_parameters` may have entries by layer type;
    /// the classic layout applies to all layers.
    pub(crate) fn rope(self, layer_type: &str, default_theta: f64) -> Result<Rope, Error> {
        if let Some(rope) = self.newer_rope(layer_type, default_theta)? {
            return Ok(rope);
        }
        let theta = self.float("rope_theta")?.unwrap_or(default_theta);
        let (scaling, magnitude) =
            self.object("rope_scaling")?.map_or(Ok((RopeScaling::None, 1.0)), |scaling| scaling.scaling(self))?;
        Ok(Rope::plain(theta).scaled(scaling, magnitude))
    }

    /// Checks that the config has parameters of `RoPE`: the class of the model has others than the
    /// usual ones.
    pub(crate) fn needs_rope(self) -> Result<(), Error> {
        let keys = ["rope_parameters", "rope_scaling", "rope_theta"];
        let missing = || fail("neither `rope_parameters` nor `rope_scaling` is there, expected one of them");
        if keys.iter().any(|key| self.value(key).is_some()) { Ok(()) } else { Err(missing()) }
    }

    /// Returns the `RoPE` of the newer layout, if the config uses it.
    pub(crate) fn newer_rope(self, layer_type: &str, default_theta: f64) -> Result<Option<Rope>, Error> {
        let Some(parameters) = self.object("rope_parameters")? else { return Ok(None) };
        // If both layouts are present, the newer one applies.
        for key in ["rope_theta", "rope_scaling"] {
            self.note(key);
        }
        let own = parameters.object(layer_type)?;
        if own.is_some() {
            // Repeated beside the parameters of the layer types, which apply.
            parameters.value("original_max_position_embeddings");
        }
        let parameters = own.unwrap_or(parameters);
        let theta = match (parameters.float("rope_theta")?, own) {
            (Some(theta), _) => theta,
            // The base next to it applies to all layers, not to one type.
            (None, Some(_)) => default_theta,
            (None, None) => self.float("rope_theta")?.unwrap_or(default_theta),
        };
        let (scaling, magnitude) = parameters.scaling(self)?;
        Ok(Some(Rope::plain(theta).scaled(scaling, magnitude)))
    }

    /// True if the newer layout has parameters for layers of this type.
    pub(crate) fn has_rope_of(self, layer_type: &str) -> bool {
        let parameters = self.value("rope_parameters").and_then(Value::as_object);
        parameters.is_some_and(|parameters| parameters.get(layer_type).is_some_and(Value::is_object))
    }

    /// True if the config states which share of a head is rotated.
    pub(crate) fn says_rotated(self) -> Result<bool, Error> {
        let newer = self.object("rope_parameters")?.is_some_and(|own| own.value("partial_rotary_factor").is_some());
        Ok(newer || self.value("partial_rotary_factor").is_some())
    }

    /// Returns the number of rotated elements of a head, if it is not the whole head.
    pub(crate) fn rotated(self, head_dim: u64) -> Result<Option<u64>, Error> {
        let newer = self
            .object("rope_parameters")?
            .and_then(|parameters| parameters.float("partial_rotary_factor").transpose());
        let factor = newer.transpose()?.or(self.float("partial_rotary_factor")?);
        Ok(factor.map(|factor| share(head_dim, factor)).filter(|rotated| *rotated != head_dim))
    }

    /// Returns the number of rotated elements of a head in layers of a type, if it is not the whole
    /// head.
    pub(crate) fn rotated_of(self, layer_type: &str, head_dim: u64) -> Result<Option<u64>, Error> {
        let Some(own) = self.object("rope_parameters")?.map(|all| all.object(layer_type)).transpose()?.flatten() else {
            return self.rotated(head_dim);
        };
        let factor = own.float("partial_rotary_factor")?;
        Ok(factor.map(|factor| share(head_dim, factor)).filter(|rotated| *rotated != head_dim))
    }

    /// Returns a number; a list of the same number for each layer counts as that number.
    pub(crate) fn number_or_same(self, key: &str) -> Result<Option<u64>, Error> {
        let Some(list) = self.value(key).and_then(Value::as_array) else { return self.unsigned(key) };
        let mut numbers = list.iter().map(Value::as_u64);
        let first = numbers.next().flatten();
        if first.is_none() || numbers.any(|number| number != first) {
            return Err(fail(format!("`{key}` is a list of different values, expected the same for all layers")));
        }
        Ok(first)
    }

    /// Returns the scaling of frequencies, and the factor of rotated elements. `model` is the
    /// enclosing object.
    fn scaling(self, model: Self) -> Result<(RopeScaling, f64), Error> {
        let need = |key: &str| self.float(key)?.ok_or_else(|| fail(format!("rope scaling has no `{key}`")));
        let (newer, older) = (self.text("rope_type"), self.text("type"));
        let scaling = match newer.or(older).unwrap_or("default") {
            // `mrope`: text has only one of its several kinds of positions. `dynamic`: scaling by
            // sequence length starts beyond the model's context, and no longer context can be
            // loaded.
            "default" | "mrope" | "dynamic" => {
                self.read.whole(self.map);
                RopeScaling::None
            }
            "linear" => RopeScaling::Linear { factor: need("factor")? },
            "proportional" => RopeScaling::Proportional {
                share: self.float("partial_rotary_factor")?.unwrap_or(1.0),
                factor: self.float("factor")?.unwrap_or(1.0),
            },
            "llama3" => RopeScaling::Llama3 {
                factor: need("factor")?,
                low_frequency_factor: need("low_freq_factor")?,
                high_frequency_factor: need("high_freq_factor")?,
                original_context: self.required("original_max_position_embeddings")?,
            },
            "yarn" => return self.yarn(model, need("factor")?),
            "longrope" | "su" => return self.long_rope(model),
            other => {
                return Err(fail(format!(
                    "rope scaling `{other}` cannot be run yet, expected default, linear, proportional, dynamic, llama3, yarn, longrope or mrope"
                )));
            }
        };
        Ok((scaling, 1.0))
    }

    /// Returns the context of the first training: from the parameters of the scaling, or else of
    /// the model.
    fn original_context(self, model: Self) -> Result<Option<u64>, Error> {
        const KEY: &str = "original_max_position_embeddings";
        Ok(self.unsigned(KEY)?.or(model.unsigned(KEY)?))
    }

    fn yarn(self, model: Self, factor: f64) -> Result<(RopeScaling, f64), Error> {
        let weight = |key: &str| Ok::<_, Error>(self.float(key)?.filter(|weight| *weight != 0.0));
        let magnitude = match (self.float("attention_factor")?, weight("mscale")?, weight("mscale_all_dim")?) {
            (Some(factor), _, _) => factor,
            (None, Some(weight), Some(all)) => yarn_magnitude(factor, weight) / yarn_magnitude(factor, all),
            _ => yarn_magnitude(factor, 1.0),
        };
        let original_context = match self.original_context(model)? {
            Some(context) => context,
            None => model.required("max_position_embeddings")?,
        };
        let scaling = RopeScaling::Yarn {
            factor,
            beta_fast: self.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.float("beta_slow")?.unwrap_or(1.0),
            original_context,
            truncate: self.flag("truncate")?.unwrap_or(true),
        };
        Ok((scaling, magnitude))
    }

    fn long_rope(self, model: Self) -> Result<(RopeScaling, f64), Error> {
        let factors = |key: &str| {
            let list = self.list(key)?.ok_or_else(|| fail(format!("rope scaling has no `{key}`")))?;
            let number =
                |value: &Value| value.as_f64().ok_or_else(|| fail(format!("`{key}` has {value}, expected numbers")));
            list.iter().map(number).collect::<Result<Vec<_>, _>>()
        };
        let longest = model.required("max_position_embeddings")?;
        let original_context = self.original_context(model)?.unwrap_or(longest);
        // Factor by which the context was extended.
        let growth = self.float("factor")?.unwrap_or(longest as f64 / original_context.max(1) as f64);
        let by_growth = if growth <= 1.0 { 1.0 } else { (1.0 + growth.ln() / (original_context as f64).ln()).sqrt() };
        let (short, long) = (factors("short_factor")?, factors("long_factor")?);
        let magnitude = self.float("attention_factor")?.unwrap_or(by_growth);
        Ok((RopeScaling::LongRope { short, long, original_context }, magnitude))
    }

    /// Returns the growth of attention with the scaling of `RoPE`, if its parameters define one;
    /// else 1.
    pub(crate) fn attention_growth(self) -> Result<f64, Error> {
        let newer = self.object("rope_parameters")?;
        let scaling = if newer.is_some() { newer } else { self.object("rope_scaling")? };
        let Some(scaling) = scaling else { return Ok(1.0) };
        Ok(match (scaling.float("factor")?, scaling.float("mscale_all_dim")?) {
            (Some(factor), Some(weight)) if weight != 0.0 => yarn_magnitude(factor, weight),
            _ => 1.0,
        })
    }
}

/// Returns a share of a size, rounded down as Python's `int` does; 0 if it is negative or NaN.
#[expect(clippy::cast_sign_loss, reason = "it is not negative")]
pub(crate) fn share(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_no_layers_is_refused() {
        let map = serde_json::from_str(r#"{"none": 0, "two": 2}"#).expect("an object");
        let read = KeysRead::default();
        let config = Config::new(&map, &read);
        assert_eq!((config.step("two", 1).ok(), config.step("unsaid", 3).ok()), (Some(2), Some(3)));
        let error = config.step("none", 1).expect_err("no step").to_string();
        assert!(error.contains("`none` is 0, expected at least 1"), "{error}");
    }
}
