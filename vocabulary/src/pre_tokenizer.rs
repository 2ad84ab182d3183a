//! Pre-tokenizers of byte-level BPE: how text is split before merging, and the names that GGUF files have for it.
//!
//! Sources: the patterns are those of the models' published `tokenizer.json` files; which name llama.cpp gives to them is
//! in its `convert_hf_to_gguf_update.py`.

/// A way of splitting.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// What is written to `tokenizer.ggml.pre`.
    pub name: &'static str,
    /// Other names of the same.
    pub aliases: &'static [&'static str],
    /// Patterns, applied one after the other; each match is a piece of its own.
    pub patterns: &'static [&'static str],
    /// A whole piece that is a token is never cut.
    pub ignore_merges: bool,
    /// A text begins with BOS where a file does not say.
    pub with_bos: bool,
}

/// What `ByteLevel` splits by unless it is told not to.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Every digit is a piece.
pub const DIGITS: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        name: "gpt-2",
        aliases: &["gpt2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "jais"],
        patterns: &[GPT2],
        ignore_merges: false,
        with_bos: false,
    },
    PreTokenizer {
        name: "smollm",
        aliases: &["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[DIGITS, GPT2],
        ignore_merges: false,
        with_bos: false,
    },
    PreTokenizer {
        name: "llama-bpe",
        aliases: &["llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        with_bos: true,
    },
    PreTokenizer { name: "dbrx", aliases: &["smaug-bpe"], patterns: &[LLAMA3], ignore_merges: false, with_bos: false },
    PreTokenizer {
        name: "qwen2",
        aliases: &["stablelm2", "deepseek-r1-qwen", "megrez"],
        patterns: &[QWEN2],
        ignore_merges: false,
        with_bos: false,
    },
];

/// The way of splitting with a name; `None` for those that are not known, and for `default` and no name, which say nothing.
pub fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// Whether a name says nothing. Readers then split as GPT-2 does.
pub fn is_default(name: &str) -> bool {
    matches!(name, "" | "default")
}

/// How a reader splits text of a file with that name; `None` where it is not known.
pub fn of_file(name: &str) -> Option<&'static PreTokenizer> {
    by_name(if is_default(name) { "gpt-2" } else { name })
}

/// The way of splitting that does just that.
pub fn by_patterns(patterns: &[String], ignore_merges: bool) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|entry| entry.patterns == patterns && entry.ignore_merges == ignore_merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_are_unique() {
        for entry in TABLE {
            let patterns: Vec<String> = entry.patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            let found = by_patterns(&patterns, entry.ignore_merges).expect("its own patterns");
            assert_eq!(found.name, entry.name);
            for name in entry.aliases {
                assert_eq!(by_name(name).map(|found| found.name), Some(entry.name));
            }
        }
        assert!(by_name("default").is_none());
        assert_eq!(of_file("default"), by_name("gpt-2"));
        assert_eq!(of_file("unheard-of"), None);
    }
}
