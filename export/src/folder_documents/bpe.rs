//! Byte-level BPE.

use import::Error;
use serde_json::{Map, Value as Json, json};
use vocabulary::pre_tokenizer::{self, PreTokenizer};

use super::fail;
use super::tokenizer::Parts;

/// The parts of a byte-level tokenizer; none where it is not known how text is split.
///
/// # Errors
/// A merge that is not a pair.
pub(super) fn parts(pre: &str, merges: &[String], losses: &mut Vec<String>) -> Result<Option<Parts>, Error> {
    if pre_tokenizer::is_default(pre) {
        losses.push("the file does not say how text is split; tokenizer.json splits as GPT-2 does".to_owned());
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
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    Ok(Some(Parts { normalizer: Json::Null, pre_tokenizer: steps(known), decoder, model }))
}

/// The steps that split text, the last of which turns bytes into letters.
fn steps(known: &PreTokenizer) -> Json {
    let byte_level =
        |split: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": split});
    let step = |pattern: &&str| match *pattern {
        pre_tokenizer::DIGITS => json!({"type": "Digits", "individual_digits": true}),
        pattern => json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
    };
    let (last, before) = match known.patterns.split_last() {
        Some((&pre_tokenizer::GPT2, before)) => (byte_level(true), before),
        _ => (byte_level(false), known.patterns),
    };
    if before.is_empty() {
        return last;
    }
    let steps: Vec<Json> = before.iter().map(step).chain([last]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}
