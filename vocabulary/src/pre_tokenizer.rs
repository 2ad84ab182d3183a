//! Pre-tokenizers of BPE: how text is split before merging, and the names that GGUF files use for
//! it.
//!
//! Sources: the patterns are llama.cpp's (`llama-vocab.cpp`). Where the models' published
//! `tokenizer.json` files differ in spelling or for non-ASCII letters, their patterns are listed as
//! well.

mod table;

use table::{DEFAULT, TABLE};
pub use table::{DIGITS, GPT2};

/// A pre-tokenizer.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// Name that is written to `tokenizer.ggml.pre`.
    pub name: &'static str,
    /// Other names of the same pre-tokenizer.
    pub aliases: &'static [&'static str],
    /// Patterns, applied one after the other; each match becomes a separate piece.
    pub patterns: &'static [&'static str],
    /// The patterns in `tokenizer.json` files; empty if they equal `patterns`.
    published: &'static [&'static str],
    /// How pieces spell text.
    pub spelling: Spelling,
    /// True if a piece that is a token as a whole is not split by merges.
    pub ignore_merges: bool,
    /// Whether a text begins with BOS.
    pub bos: Bos,
    /// True if the decoder removes the spaces before some punctuation.
    pub cleans_spaces: bool,
}

/// Whether a text begins with BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// Only if the file requests it.
    Unusual,
    /// Unless the file disables it.
    Usual,
    /// In every case: the first published files stated it wrongly.
    Always,
}

/// How the pieces of a BPE vocabulary spell text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// One letter per byte, as in GPT-2.
    Bytes,
    /// Text with `▁` for spaces. Characters without a piece are spelled with pieces `<0xXX>` for
    /// their bytes.
    Text,
}

impl PreTokenizer {
    /// Returns the patterns in `tokenizer.json` files.
    pub fn published(&self) -> &'static [&'static str] {
        if self.published.is_empty() { self.patterns } else { self.published }
    }
}

/// Returns the pre-tokenizer with a name; `None` for unknown names, and for `default` and the empty
/// name, which are unspecific.
pub fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    let named = |entry: &&PreTokenizer| entry.name == name || entry.aliases.contains(&name);
    TABLE.iter().find(named).filter(|_| !is_default(name))
}

/// Whether a name leaves the pre-tokenizer unspecified.
pub fn is_default(name: &str) -> bool {
    matches!(name, "" | "default")
}

/// Returns the pre-tokenizer that a reader uses for a file with that name; `None` if it is unknown.
pub fn of_file(name: &str) -> Option<&'static PreTokenizer> {
    if is_default(name) { Some(&DEFAULT) } else { by_name(name) }
}

/// Returns the pre-tokenizer of a `tokenizer.json` with these patterns.
pub fn by_patterns(patterns: &[String], ignore_merges: bool) -> Option<&'static PreTokenizer> {
    let same = |own: &[&str]| own == patterns;
    let bytes = TABLE.iter().filter(|entry| entry.spelling == Spelling::Bytes && !is_default(entry.name));
    bytes
        .into_iter()
        .find(|entry| (same(entry.published()) || same(entry.patterns)) && entry.ignore_merges == ignore_merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_patterns_lead_back() {
        let mut names = Vec::new();
        for entry in TABLE.iter().filter(|entry| entry.spelling == Spelling::Bytes && *entry != &DEFAULT) {
            let patterns: Vec<String> = entry.published().iter().map(|pattern| (*pattern).to_owned()).collect();
            let found = by_patterns(&patterns, entry.ignore_merges).expect("its own patterns");
            assert_eq!(found.published(), entry.published(), "{}", entry.name);
            for name in entry.aliases.iter().chain([&entry.name]) {
                assert_eq!(by_name(name), Some(entry));
                names.push(*name);
            }
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a name is there twice");
        assert!(by_name("default").is_none());
        assert_eq!(of_file("").map(|entry| entry.name), Some("default"));
        assert_eq!(of_file("unheard-of"), None);
    }
}
