//! Special tokens: texts that begin and end turns; for Hugging Face models, also the tokens that
//! end a generation and the variables that templates use.

use serde_json::{Map, Value};

/// Texts of control tokens that end a generation, as llama.cpp lists them (`llama-vocab.cpp`).
/// Files name one or two of them; some published files mark them as normal text.
pub const ENDS: [&str; 33] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|eom_id|>",
    "<|end|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "</s>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Padding, and separators of files and repositories in fill-in-the-middle prompts.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts of tokens that mark a gap in a text. They count as control tokens, also if a file states
/// another type.
pub const GAPS: [&str; 24] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<|prefix|>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<|suffix|>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<|middle|>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
];

/// Texts of gpt-oss tokens that are shown in the output, also if a file states otherwise.
pub const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Texts of control tokens that begin a turn.
pub const BEGINS: [&str; 4] = ["<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>"];

/// Returns the ids in a config's `eos_token_id`, which is a number or a list.
pub fn end_ids(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Returns `bos_token`, `eos_token` and similar entries of `tokenizer_config.json` or
/// `special_tokens_map.json`. Each value is a text or an object that contains one.
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
