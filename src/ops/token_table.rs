//! Vocabularies laid out for runners: a file each, derived from the document that has the vocabulary when a model is loaded first, and
//! mapped by every runner since.

use std::path::PathBuf;

use anyhow::Result;
use content::Digest;
use formats::Gguf;
use import::MAX_GGUF_HEADER;
use vocabulary::token_table::VERSION;
use vocabulary::{TokenTable, Vocabulary};

use super::Library;
use super::capabilities::beginning;

/// A longer `tokenizer.json` is left to the runner, in bytes: 8 times that of Gemma 3.
const MAX_TOKENIZER_JSON: u64 = 256 << 20;

impl Library {
    /// The file with the table of a model's vocabulary, made where it is not there yet. `None` where the vocabulary is none for a
    /// table, or cannot be read: the runner reads the document itself then, and says what is wrong with it.
    pub(super) fn token_table(&self, documents: &[(String, Digest)]) -> Option<PathBuf> {
        let path = |digest: &Digest| self.store.path(digest);
        let is_json = |(name, _): &&(String, Digest)| name == "tokenizer.json";
        let is_gguf = |(_, digest): &&(String, Digest)| beginning(&path(digest), 4).is_ok_and(|raw| raw == b"GGUF");
        let (name, source) = documents.iter().find(is_json).or_else(|| documents.iter().find(is_gguf))?;
        if let Some(known) = self.store.derived(source, VERSION) {
            return Some(known);
        }
        let table = if name == "tokenizer.json" { of_json(&path(source)) } else { of_gguf(&path(source)) };
        let kept = table.and_then(|table| {
            let Some(table) = table else { return Ok(None) };
            Ok(Some(self.store.set_derived(source, VERSION, &table)?))
        });
        kept.unwrap_or_else(|error| {
            tracing::warn!(document = name, "its vocabulary is not laid out for runners: {error:#}");
            None
        })
    }

    /// Removes tables that nobody needs.
    pub(super) fn expire_token_tables(&self) {
        if let Err(error) = self.store.expire_derived(&[VERSION]) {
            tracing::warn!("derived files that nobody needs stay: {error}");
        }
    }
}

fn of_json(path: &std::path::Path) -> Result<Option<Vec<u8>>> {
    let raw = beginning(path, MAX_TOKENIZER_JSON + 1)?;
    if raw.len() as u64 > MAX_TOKENIZER_JSON {
        return Ok(None);
    }
    Ok(TokenTable::of_tokenizer_json(&raw)?)
}

fn of_gguf(path: &std::path::Path) -> Result<Option<Vec<u8>>> {
    let raw = beginning(path, MAX_GGUF_HEADER)?;
    let vocabulary = Vocabulary::read(&Gguf::parse_header(&raw)?)?;
    Ok(vocabulary.map(TokenTable::of_vocabulary).transpose()?)
}
