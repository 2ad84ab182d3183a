//! Token tables from `tokenizer.json`: the BPE of the `tokenizers` library. Its other models are small or rare, and are read as
//! they are.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Map;
use serde_json::value::RawValue;

use super::{Settings, TokenTable};
use crate::Error;

type Fields<'j> = BTreeMap<String, &'j RawValue>;

/// Ids may have gaps; more of them than so many for each token are no vocabulary's.
const MOST_GAPS: usize = 4;

impl TokenTable {
    /// Lays out a `tokenizer.json` whose model is plain BPE: the bytes of a table; `None` for another model.
    ///
    /// # Errors
    /// It is not JSON, or a merge is not a pair of tokens.
    pub fn of_tokenizer_json(raw: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let fields: Fields<'_> = read(raw)?;
        let Some(model) = fields.get("model") else { return Ok(None) };
        // The model may be anything, then it is for the library to say.
        let Ok(model) = serde_json::from_str::<Fields<'_>>(model.get()) else { return Ok(None) };
        if !is_plain(&model) {
            return Ok(None);
        }
        let (Some(vocabulary), Some(merges)) = (model.get("vocab"), model.get("merges")) else { return Ok(None) };
        let Some(texts) = texts(read(vocabulary.get().as_bytes())?) else { return Ok(None) };
        let settings = Settings::TokenizerJson(settings(&fields, &model)?);
        match read(merges.get().as_bytes())? {
            Merges::Pairs(pairs) => Self::of_bpe(&texts, &pairs, &settings).map(Some),
            Merges::Texts(merges) => {
                let lines = merges.iter().filter(|line| !line.starts_with("#version"));
                let pairs = lines.map(|line| {
                    let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                    pair.ok_or_else(|| Error(format!("merge `{line}` of `tokenizer.json` is not a pair")))
                });
                Self::of_bpe(&texts, &pairs.collect::<Result<Vec<_>, _>>()?, &settings).map(Some)
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merges {
    Pairs(Vec<(String, String)>),
    Texts(Vec<String>),
}

fn read<'j, T: Deserialize<'j>>(raw: &'j [u8]) -> Result<T, Error> {
    serde_json::from_slice(raw).map_err(|error| Error(format!("`tokenizer.json`: {error}")))
}

/// Whether a model is BPE without what would change its texts, or choose its merges by chance.
fn is_plain(model: &Fields<'_>) -> bool {
    fn field<T: DeserializeOwned>(model: &Fields<'_>, name: &str) -> Option<T> {
        serde_json::from_str(model.get(name)?.get()).ok()
    }
    let absent = |name: &str| model.get(name).is_none_or(|value| matches!(value.get(), "null" | "\"\"" | "0.0" | "0"));
    let named = match model.get("type") {
        Some(_) => field::<String>(model, "type").as_deref() == Some("BPE"),
        None => true,
    };
    named && ["dropout", "continuing_subword_prefix", "end_of_word_suffix"].into_iter().all(absent)
}

/// Texts by id; `None` where two have one id, or where ids are far apart.
fn texts(ids: HashMap<String, u32>) -> Option<Vec<Option<String>>> {
    let size = ids.values().max().map_or(0, |id| *id as usize + 1);
    if size > ids.len() * MOST_GAPS {
        return None;
    }
    let mut texts = vec![None; size];
    for (text, id) in ids {
        if texts[id as usize].replace(text).is_some() {
            return None;
        }
    }
    Some(texts)
}

/// The document without the vocabulary and the merges.
fn settings(fields: &Fields<'_>, model: &Fields<'_>) -> Result<Box<RawValue>, Error> {
    let failed = |error: serde_json::Error| Error(format!("`tokenizer.json`: {error}"));
    let value = |value: &RawValue| serde_json::from_str::<serde_json::Value>(value.get()).map_err(failed);
    let mut kept = Map::new();
    for (name, field) in fields.iter().filter(|(name, _)| *name != "model") {
        kept.insert(name.clone(), value(field)?);
    }
    let mut of_model = Map::new();
    for (name, field) in model.iter().filter(|(name, _)| !matches!(name.as_str(), "vocab" | "merges")) {
        of_model.insert(name.clone(), value(field)?);
    }
    kept.insert("model".to_owned(), of_model.into());
    serde_json::value::to_raw_value(&kept).map_err(failed)
}
