//! Tokenizers of the byte-level BPE kind.

use import::Error;
use serde_json::{Map, Value as Json, json};
use vocabulary::pre_tokenizer::{self, PreTokenizer, Spelling};

use super::tokenizer_parts::Parts;
use super::{fail, sentencepiece};

/// Returns the parts of a byte-level tokenizer; `None` if the pre-tokenizer `pre` is unknown.
///
/// # Errors
/// A merge is not a pair.
pub(super) fn parts(pre: &str, merges: &[String], losses: &mut Vec<String>) -> Result<Option<Parts>, Error> {
    if pre_tokenizer::is_default(pre) {
        losses.push("the file does not say how text is split; tokenizer.json splits as llama.cpp then does".to_owned());
    }
    let known = pre_tokenizer::of_file(pre);
    let Some(known) = known else {
        losses.push(format!("there is no tokenizer.json: how `{pre}` splits text is not known"));
        return Ok(None);
    };
    let pair = |merge: &String| match merge.split_once(' ') {
        Some((left, right)) => Ok(json!([left, right])),
        None => Err(fail(format!("merge `{merge}` is not a pair"))),
    };
    let merges = merges.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    let mut model = Map::new();
    model.insert("ignore_merges".to_owned(), known.ignore_merges.into());
    model.insert("merges".to_owned(), merges.into());
    let (normalizer, decoder) = match known.spelling {
        Spelling::Bytes => (
            Json::Null,
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
        Spelling::Text => {
            model.insert("byte_fallback".to_owned(), true.into());
            (sentencepiece::spaces_replaced(), sentencepiece::decoder(false))
        }
    };
    Ok(Some(Parts { normalizer, pre_tokenizer: steps(known), decoder, model }))
}

/// Returns the steps that split text; the last one maps bytes to letters.
fn steps(known: &PreTokenizer) -> Json {
    let byte_level =
        |split: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": split});
    let step = |pattern: &&str| match *pattern {
        pre_tokenizer::DIGITS => json!({"type": "Digits", "individual_digits": true}),
        pattern => json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
    };
    let patterns = known.published();
    let (last, before) = match (known.spelling, patterns.split_last()) {
        (Spelling::Text, _) => (None, patterns),
        (Spelling::Bytes, Some((&pre_tokenizer::GPT2, before))) => (Some(byte_level(true)), before),
        (Spelling::Bytes, _) => (Some(byte_level(false)), patterns),
    };
    let mut steps: Vec<Json> = before.iter().map(step).chain(last).collect();
    if steps.len() == 1 {
        return steps.remove(0);
    }
    json!({"type": "Sequence", "pretokenizers": steps})
}
