//! Quantization settings in a model's `config.json`.
//!
//! The document is untrusted. A setting that cannot be parsed counts as missing, and is an error
//! only if it is needed.

use formats::Encoding;
use formats::encoding::Micro;
use serde_json::{Map, Value};

/// Keys of the settings in configs: MLX's key, then the common one.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Quantization settings from a model's `config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizationConfig {
    /// Object under one of the [`KEYS`]; empty if there is none.
    object: Map<String, Value>,
}

impl QuantizationConfig {
    /// Reads the settings from a `config.json`.
    pub fn from_config(raw: &[u8]) -> Self {
        let config: Option<Value> = serde_json::from_slice(&formats::json::tolerant(raw)).ok();
        // A model with vision may have the settings in its text part.
        let parts = config.iter().flat_map(|config| [Some(config), config.get("text_config")]).flatten();
        let mut found = parts.flat_map(|part| KEYS.iter().filter_map(|key| part.get(*key)?.as_object()));
        Self { object: found.next().cloned().unwrap_or_default() }
    }

    /// Returns the quantization method: `fp8`, `mxfp4`, `compressed-tensors`, `modelopt`, `gptq`, …
    pub fn method(&self) -> Option<&str> {
        self.object.get("quant_method")?.as_str()
    }

    /// Returns a numeric setting, e.g. `bits`.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.object.get(key)?.as_u64()
    }

    /// Returns a boolean setting, e.g. `desc_act`; false if missing.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.object.get(key) == Some(&Value::Bool(true))
    }

    /// Returns a text setting, e.g. `checkpoint_format`.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.object.get(key)?.as_str()
    }

    /// Returns rows and columns of the blocks that share a scale, for FP8.
    pub fn block_size(&self) -> Option<(u32, u32)> {
        let compressed = || {
            let groups = self.object.get("config_groups")?.as_object()?;
            // Groups of other types have the key too, with null.
            groups.values().find_map(|group| group.get("weights")?.get("block_structure").filter(|v| v.is_array()))
        };
        let size = self.object.get("weight_block_size").filter(|v| v.is_array()).or_else(compressed)?.as_array()?;
        let [rows, columns] = size.as_slice() else { return None };
        let side = |value: &Value| u32::try_from(value.as_u64()?).ok().filter(|side| *side > 0);
        Some((side(rows)?, side(columns)?))
    }

    /// Returns MLX's encoding of a module's weight, e.g. of `model.layers.0.mlp.up_proj`; `None` if
    /// the config does not state it.
    ///
    /// An entry for the module replaces the settings for all modules completely, including
    /// defaults, as `nn.quantize` of MLX does.
    ///
    /// # Errors
    /// The settings do not describe an encoding, or state that the module is not quantized.
    pub fn mlx(&self, module: &str) -> Result<Option<Encoding>, String> {
        let says = match self.object.get(module) {
            Some(Value::Bool(false)) => return Err("config.json states that the module is not quantized".to_owned()),
            Some(Value::Object(own)) => own,
            None | Some(Value::Bool(true)) => &self.object,
            Some(other) => return Err(unexpected("the entry", other, "an object, true or false")),
        };
        if !["mode", "bits", "group_size"].iter().any(|key| says.contains_key(*key)) {
            return Ok(None);
        }
        encoding(says).map(Some)
    }
}

/// Returns the encoding that MLX's settings describe; missing settings have MLX's defaults.
fn encoding(says: &Map<String, Value>) -> Result<Encoding, String> {
    let modes = [Micro::Nvfp4, Micro::Mxfp4, Micro::Mxfp8];
    match says.get("mode") {
        None => {}
        Some(Value::String(mode)) if mode == "affine" => {}
        Some(mode) => {
            let micro = modes.into_iter().find(|micro| mode.as_str() == Some(micro.name()));
            let micro = micro.ok_or_else(|| unexpected("`mode`", mode, "affine, nvfp4, mxfp4 or mxfp8"));
            return micro.map(Encoding::Micro);
        }
    }
    let number = |key: &str, default: u64, expected: &str| match says.get(key) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| unexpected(&format!("`{key}`"), value, expected)),
    };
    let bits = number("bits", 4, "2, 3, 4, 5, 6 or 8")?;
    let group = number("group_size", 64, "32, 64 or 128")?;
    Encoding::parse(&format!("int{bits}"), group).ok_or_else(|| {
        format!(
            "config.json says {bits} bits in groups of {group}, expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        )
    })
}

fn unexpected(what: &str, value: &Value, expected: &str) -> String {
    // The value is untrusted and can have any length.
    let value: String = value.to_string().chars().take(60).collect();
    format!("{what} in config.json is {value}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes() {
        for (config, expect) in [
            (r#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,64]}}"#, Some((128, 64))),
            (
                r#"{"quantization_config":{"weight_block_size":null,
                    "config_groups":{"group_0":{"weights":{"block_structure":[4,8]}}}}}"#,
                Some((4, 8)),
            ),
            (
                r#"{"quantization_config":{"config_groups":{"group_0":{"weights":{"block_structure":null}},
                    "group_1":{"weights":{"block_structure":[16,32]}}}}}"#,
                Some((16, 32)),
            ),
            (r#"{"quantization_config":{"weight_block_size":[128]}}"#, None),
            (r#"{"quantization_config":{"weight_block_size":[0,128]}}"#, None),
            (r#"{"quantization_config":{"weight_block_size":[1e30,128]}}"#, None),
            (r#"{"quantization_config":[1,2]}"#, None),
            ("{", None),
            ("", None),
        ] {
            assert_eq!(QuantizationConfig::from_config(config.as_bytes()).block_size(), expect, "{config}");
        }
    }

    #[test]
    fn settings_of_mlx() {
        let affine = |bits, group| Ok(Some(Encoding::Affine { bits, group }));
        let wrong = |text: &str| Err(text.to_owned());
        for (config, expect) in [
            (r#"{"quantization":{"group_size":64,"bits":4}}"#, affine(4, 64)),
            (r#"{"quantization_config":{"group_size":32,"bits":3,"mode":"affine"}}"#, affine(3, 32)),
            (r#"{"quantization":{"group_size":64,"bits":4,"a.b":{"group_size":32,"bits":8}}}"#, affine(8, 32)),
            (r#"{"quantization":{"mode":"mxfp8","a.b":{"bits":6}}}"#, affine(6, 64)),
            (r#"{"quantization":{"mode":"mxfp8","a.b":true}}"#, Ok(Some(Encoding::Micro(Micro::Mxfp8)))),
            (r#"{"quantization":{"bits":4,"a.b":false}}"#, wrong("not quantized")),
            (r#"{"quantization":{"bits":4,"a.b":[]}}"#, wrong("the entry in config.json is []")),
            (r#"{"quantization":{"bits":1e30}}"#, wrong("`bits` in config.json is 1e+30")),
            (r#"{"quantization":{"bits":7}}"#, wrong("7 bits in groups of 64")),
            (r#"{"quantization":{"bits":4,"group_size":0}}"#, wrong("groups of 0")),
            (r#"{"quantization":{"mode":"q4"}}"#, wrong("`mode` in config.json is \"q4\"")),
            (r#"{"quantization":{"mode":[1]}}"#, wrong("`mode` in config.json is [1]")),
            (r#"{"quantization":{}}"#, Ok(None)),
            (r#"{"quantization":4}"#, Ok(None)),
        ] {
            match (QuantizationConfig::from_config(config.as_bytes()).mlx("a.b"), expect) {
                (Err(found), Err(expect)) => assert!(found.contains(&expect), "`{found}` should say `{expect}`"),
                (found, expect) => assert_eq!(found, expect, "{config}"),
            }
        }
    }
}
