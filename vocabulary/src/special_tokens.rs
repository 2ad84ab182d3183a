//! Special tokens: texts that begin and end turns; of a Hugging Face model those that end a generation, and the variables
//! that templates use.

use serde_json::{Map, Value};

/// Texts of control tokens that end a turn. Files name one of them as EOS and say nothing of the others; some published
/// ones give them the type of text.
pub const ENDS: [&str; 8] =
    ["<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|eom_id|>", "<|end|>", "<EOT>"];

/// Texts of control tokens that begin a turn.
pub const BEGINS: [&str; 4] = ["<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>"];

/// The ids in `eos_token_id` of a config: a number or a list.
pub fn end_ids(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => Vec::new(),
    }
}

/// `bos_token`, `eos_token` and the like from `tokenizer_config.json` or `special_tokens_map.json`: each is a text or an
/// object with one.
pub fn variables(config: &Value) -> Map<String, Value> {
    let Some(config) = config.as_object() else { return Map::new() };
    config
        .iter()
        .filter(|(key, _)| key.ends_with("_token") && !key.starts_with("add_"))
        .filter_map(|(key, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), Value::from(text)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_both_forms() {
        assert_eq!(end_ids(&json!({"eos_token_id": 2})), [2]);
        assert_eq!(end_ids(&json!({"eos_token_id": [2, 5]})), [2, 5]);
        assert!(end_ids(&json!({"eos_token_id": null})).is_empty());
        let config =
            json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "pad_token": null});
        assert_eq!(Value::from(variables(&config)), json!({"bos_token": "<s>", "eos_token": "</s>"}));
    }
}
