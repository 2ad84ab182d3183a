//! What a model's `config.json` says of how its weights are quantized.
//!
//! The document is anybody's: what is not understood counts as not said, and is an error only where it is needed.

use serde_json::{Map, Value};

/// The keys under which configs have it: MLX's, then everybody's.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// The quantization of a model by its `config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizationConfig {
    /// What the config has under one of [`KEYS`]; empty where there is nothing.
    object: Map<String, Value>,
}

impl QuantizationConfig {
    /// Reads a `config.json`.
    pub fn from_config(raw: &[u8]) -> Self {
        let config: Option<Value> = serde_json::from_slice(raw).ok();
        let under = |key: &str| config.as_ref()?.get(key)?.as_object().cloned();
        Self { object: KEYS.into_iter().find_map(under).unwrap_or_default() }
    }

    /// Who quantized it: `fp8`, `mxfp4`, `compressed-tensors`, `modelopt`, `gptq`, …
    pub fn method(&self) -> Option<&str> {
        self.object.get("quant_method")?.as_str()
    }

    /// Rows and columns of the blocks that share a scale, for FP8.
    pub fn block_size(&self) -> Option<(u32, u32)> {
        let compressed = || {
            let groups = self.object.get("config_groups")?.as_object()?;
            groups.values().find_map(|group| group.get("weights")?.get("block_structure")).filter(|v| v.is_array())
        };
        let size = self.object.get("weight_block_size").filter(|v| v.is_array()).or_else(compressed)?.as_array()?;
        let [rows, columns] = size.as_slice() else { return None };
        let side = |value: &Value| u32::try_from(value.as_u64()?).ok().filter(|side| *side > 0);
        Some((side(rows)?, side(columns)?))
    }
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
}
