//! Token tables from `tokenizer.json`, for the BPE model of the `tokenizers` library. Other models
//! are small or rare, and the library reads them itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{Settings, TokenTable};
use crate::Error;

type TokenizerFields<'j> = BTreeMap<String, &'j RawValue>;

/// Maximum ratio of ids to tokens. Ids can have gaps, but no real vocabulary has more.
const MOST_GAPS: usize = 4;

impl TokenTable {
    /// Lays out a `tokenizer.json` whose model is plain BPE. Returns the bytes of a table, or
    /// `None` for another model.
    ///
    /// # Errors
    /// The document is not JSON, or a merge is not a pair of tokens.
    pub fn of_tokenizer_json(raw: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let fields: TokenizerFields<'_> = read(raw)?;
        let Some(model) = plain_bpe(&fields) else { return Ok(None) };
        let (Some(vocabulary), Some(merges)) = (model.get("vocab"), model.get("merges")) else { return Ok(None) };
        let Some(texts) = texts(read(vocabulary.get().as_bytes())?) else { return Ok(None) };
        let settings = Settings::TokenizerJson(settings(&fields, &model)?);
        let merges = merges.get().as_bytes();
        // Parsing a list of pairs as a list of texts fails at the first item, so the attempt is
        // cheap.
        let Ok(lines) = read::<Vec<Text<'_>>>(merges) else {
            return Self::of_bpe(&texts, &read::<Vec<(Text<'_>, Text<'_>)>>(merges)?, &settings).map(Some);
        };
        let lines = lines.iter().map(AsRef::as_ref).filter(|line| !line.starts_with("#version"));
        let pairs = lines.map(|line| {
            let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
            pair.ok_or_else(|| Error(format!("merge `{line}` of `tokenizer.json` is not a pair")))
        });
        Self::of_bpe(&texts, &pairs.collect::<Result<Vec<_>, _>>()?, &settings).map(Some)
    }
}

/// Whether the model of a `tokenizer.json` becomes a table, as far as its options show.
pub fn is_plain_bpe(raw: &[u8]) -> bool {
    read::<TokenizerFields<'_>>(raw).is_ok_and(|fields| plain_bpe(&fields).is_some())
}

/// Returns the model of a document if it is plain BPE. Malformed models give `None`; the library
/// reports their errors.
fn plain_bpe<'j>(fields: &TokenizerFields<'j>) -> Option<TokenizerFields<'j>> {
    let model = serde_json::from_str(fields.get("model")?.get()).ok()?;
    is_plain(&model).then_some(model)
}

/// A text, borrowed from the document unless it contains escapes.
#[derive(PartialEq, Eq, Hash, Deserialize)]
struct Text<'j>(#[serde(borrow)] Cow<'j, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn read<'j, T: Deserialize<'j>>(raw: &'j [u8]) -> Result<T, Error> {
    serde_json::from_slice(raw).map_err(|error| Error(format!("`tokenizer.json`: {error}")))
}

/// Whether a model is BPE without options that change its texts or drop merges at random.
fn is_plain(model: &TokenizerFields<'_>) -> bool {
    fn field<T: DeserializeOwned>(model: &TokenizerFields<'_>, name: &str) -> Option<T> {
        serde_json::from_str(model.get(name)?.get()).ok()
    }
    let absent = |name: &str| model.get(name).is_none_or(|value| matches!(value.get(), "null" | "\"\"" | "0.0" | "0"));
    let named = match model.get("type") {
        Some(_) => field::<String>(model, "type").as_deref() == Some("BPE"),
        None => true,
    };
    named && ["dropout", "continuing_subword_prefix", "end_of_word_suffix"].into_iter().all(absent)
}

/// Returns the texts by id; `None` if there are none, if two have the same id, or if ids are too
/// sparse.
fn texts(ids: HashMap<Text<'_>, u32>) -> Option<Vec<Option<Text<'_>>>> {
    let size = *ids.values().max()? as usize + 1;
    if size > ids.len() * MOST_GAPS {
        return None;
    }
    let mut texts: Vec<Option<Text<'_>>> = Vec::new();
    texts.resize_with(size, || None);
    for (text, id) in ids {
        if texts[id as usize].replace(text).is_some() {
            return None;
        }
    }
    Some(texts)
}

/// Returns the document without the vocabulary and the merges.
fn settings(fields: &TokenizerFields<'_>, model: &TokenizerFields<'_>) -> Result<Box<RawValue>, Error> {
    let failed = |error: serde_json::Error| Error(format!("`tokenizer.json`: {error}"));
    let rules: BTreeMap<_, _> = model.iter().filter(|(name, _)| !matches!(name.as_str(), "vocab" | "merges")).collect();
    let rules = serde_json::value::to_raw_value(&rules).map_err(failed)?;
    let mut kept: BTreeMap<&str, &RawValue> = fields.iter().map(|(name, field)| (name.as_str(), *field)).collect();
    kept.insert("model", &rules);
    serde_json::value::to_raw_value(&kept).map_err(failed)
}
