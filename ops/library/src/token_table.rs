//! Vocabularies laid out for runners: a file each, derived from the document that has the vocabulary when a model is loaded first, and
//! mapped by every runner since.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use content::Digest;
use formats::Gguf;
use import::ReadAt;
use vocabulary::token_table::VERSION;
use vocabulary::{TokenTable, Vocabulary};

use crate::blobs::beginning;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;

impl Library {
    /// The file with the table of a model's vocabulary, made where there is no good one. `None` where the vocabulary is none for a
    /// table, which an empty file remembers, or cannot be read: the runner reads the document itself then, and says what is wrong.
    pub(crate) fn token_table(&self, documents: &[(String, Digest)]) -> Option<PathBuf> {
        let is_json = |(name, _): &&(String, Digest)| name == "tokenizer.json";
        let is_gguf =
            |(_, digest): &&(String, Digest)| beginning(&*self.open(digest), 4).is_ok_and(|raw| raw == b"GGUF");
        let (name, source) = documents.iter().find(is_json).or_else(|| documents.iter().find(is_gguf))?;
        if let Some(known) = self.store.derived(source, VERSION) {
            if known.metadata().is_ok_and(|metadata| metadata.len() == 0) {
                return None;
            }
            if File::open(&known).and_then(TokenTable::is_whole).unwrap_or(false) {
                return Some(known);
            }
            tracing::warn!(file = %known.display(), "a token table is damaged; it is made again");
        }
        let table = if name == "tokenizer.json" { of_json(&*self.open(source)) } else { of_gguf(&*self.open(source)) };
        let kept = table.and_then(|table| {
            let path = self.store.set_derived(source, VERSION, table.as_deref().unwrap_or_default())?;
            Ok(table.map(|_| path))
        });
        kept.unwrap_or_else(|error| {
            tracing::warn!(document = name, "its vocabulary is not laid out for runners: {error:#}");
            None
        })
    }

    /// Removes tables that nobody needs.
    pub(crate) fn expire_token_tables(&self) {
        if let Err(error) = self.store.expire_derived(&[VERSION]) {
            tracing::warn!("derived files that nobody needs stay: {error}");
        }
    }
}

/// The table of a document that is not too long: a parsed one takes many times its size.
fn of_json(source: &dyn ReadAt) -> Result<Option<Vec<u8>>> {
    let raw = beginning(source, MAX_DOCUMENT + 1)?;
    ensure!(raw.len() as u64 <= MAX_DOCUMENT, "it has more than {MAX_DOCUMENT} bytes");
    Ok(TokenTable::of_tokenizer_json(&raw)?)
}

fn of_gguf(source: &dyn ReadAt) -> Result<Option<Vec<u8>>> {
    // A whole file is longer than its header.
    let raw = beginning(source, MAX_DOCUMENT)?;
    let vocabulary = Vocabulary::read(&Gguf::parse_header(&raw)?)?;
    Ok(vocabulary.map(TokenTable::of_vocabulary).transpose()?)
}
