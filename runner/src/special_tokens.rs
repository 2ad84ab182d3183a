//! Special tokens of a Hugging Face model: which end a generation, and the variables that templates use.

use serde_json::{Map, Value};

/// The ids in `eos_token_id` of a config: a number or a list.
pub(crate) fn end_ids(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => Vec::new(),
    }
}

/// `bos_token`, `eos_token` and the like from `tokenizer_config.json` or `special_tokens_map.json`: each is a text or an
/// object with one.
pub(crate) fn variables(config: &Value) -> Map<String, Value> {
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

/// The chat templates of `tokenizer_config.json`: one text, or a list of named ones.
pub(crate) fn templates(config: &Value) -> Vec<(String, String)> {
    match config.get("chat_template") {
        Some(Value::String(text)) => vec![("default".to_owned(), text.clone())],
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|entry| {
                let text = |key: &str| Some(entry.get(key)?.as_str()?.to_owned());
                Some((text("name")?, text("template")?))
            })
            .collect(),
        _ => Vec::new(),
    }
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
        let named =
            json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
        assert_eq!(templates(&named).len(), 2);
    }
}
