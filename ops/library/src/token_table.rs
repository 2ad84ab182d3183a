//! Token tables for runners: one file for each vocabulary. It is derived when a model with the
//! vocabulary is first loaded, and every runner maps it afterwards.

use std::fs::File;
use std::path::PathBuf;

use content::Digest;
use content::ensure;
use content::operation::{Result, Unclassified};
use formats::Gguf;
use import::ReadAt;
use vocabulary::token_table::VERSION;
use vocabulary::{TokenTable, Vocabulary};

use crate::blobs::beginning;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;

impl Library {
    /// Returns the file with the token table of a model's vocabulary; a missing or damaged one is
    /// derived. Returns `None` if the vocabulary cannot become a table (an empty file records this)
    /// or cannot be read. The runner then reads the document itself and reports errors.
    pub(crate) fn token_table(&self, documents: &[(String, Digest)]) -> Option<PathBuf> {
        let is_json = |(name, _): &&(String, Digest)| name == "tokenizer.json";
        let is_gguf =
            |(_, digest): &&(String, Digest)| beginning(&*self.open(digest), 4).is_ok_and(|raw| raw == b"GGUF");
        let (name, source) = documents.iter().find(is_json).or_else(|| documents.iter().find(is_gguf))?;
        if let Some(known) = self.store.notes().derived(source, VERSION) {
            if known.metadata().is_ok_and(|metadata| metadata.len() == 0) {
                return None;
            }
            if File::open(&known).and_then(TokenTable::is_whole).unwrap_or(false) {
                return Some(known);
            }
            tracing::warn!(file = %known.display(), "a token table is damaged; rebuilding it");
        }
        let table = if name == "tokenizer.json" { of_json(&*self.open(source)) } else { of_gguf(&*self.open(source)) };
        let kept = table.and_then(|table| {
            let path = self.store.notes().set_derived(source, VERSION, table.as_deref().unwrap_or_default())?;
            Ok(table.map(|_| path))
        });
        kept.unwrap_or_else(|error| {
            tracing::warn!(document = name, "cannot build a token table from its vocabulary: {error:#}");
            None
        })
    }

    /// Removes unneeded tables.
    pub(crate) fn expire_token_tables(&self) {
        if let Err(error) = self.store.notes().expire_derived(&[VERSION]) {
            tracing::warn!("cannot remove unneeded derived files: {error}");
        }
    }
}

/// Derives the table of a document up to the size limit, because a parsed document takes many times
/// its size.
fn of_json(source: &dyn ReadAt) -> Result<Option<Vec<u8>>> {
    let raw = beginning(source, MAX_DOCUMENT + 1)?;
    ensure!(raw.len() as u64 <= MAX_DOCUMENT, "it has more than {MAX_DOCUMENT} bytes");
    TokenTable::of_tokenizer_json(&raw).internal()
}

fn of_gguf(source: &dyn ReadAt) -> Result<Option<Vec<u8>>> {
    // A complete GGUF file is longer than its header.
    let raw = beginning(source, MAX_DOCUMENT)?;
    let vocabulary = Vocabulary::read(&Gguf::parse_header(&raw).internal()?).internal()?;
    vocabulary.map(TokenTable::of_vocabulary).transpose().internal()
}
